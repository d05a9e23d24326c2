"""The results of calls, and the errors that they raise."""

from __future__ import annotations

import json
import logging
import re
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from math import ceil, floor, inf
from typing import Any, Literal, TypedDict, TypeVar

T = TypeVar("T")
log = logging.getLogger("postgres_rate_limit")
LimitedBy = Literal["block", "slots", "tokens"]
"""The key is blocked; too few slots are free; too few tokens are left, or there can never be enough."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def time_of(microseconds: int | None) -> datetime | None:
    """A time of the database, sent as microseconds since 1970."""
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)


class Answer:
    """True if ok."""

    ok: bool

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class Result(Answer):
    """The result of a call on one limit. True if the call was allowed."""

    ok: bool
    """Whether the tokens were taken; for check, whether they would be."""
    retry_after: float | None = None
    """Denied: seconds until the same call succeeds, or None if it never can. Reserved: until the work should start."""
    retry_at: datetime | None = None
    remaining: float | None = None
    """Tokens left; negative in debt. None if the key is exempt, and so are capacity and reset_at."""
    capacity: float | None = None
    reset_at: datetime | None = None
    limited_by: LimitedBy | None = None
    """The reason of the denial; None: none. If ok is true, only a dry run admitted it."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers that the call asked for, or else Retry-After, if it was denied and can pass later."""
    error: BaseException | None = None
    """The reason why the call went unchecked, with on_error="open": the driver's error."""


@dataclass(frozen=True)
class RequestResult:
    """The result of one request of a call on several limits."""

    name: str
    key: str
    ok: bool
    """Whether all were admitted."""
    retry_after: float | None = None
    retry_at: datetime | None = None
    remaining: float | None = None
    capacity: float | None = None
    reset_at: datetime | None = None
    limited_by: LimitedBy | None = None
    """As in Result; also None if only other requests deny."""


@dataclass(frozen=True)
class HoldRequestResult(RequestResult):
    """The result of one request of a hold of several limits."""

    held: float | None = None
    """The tokens or slots held."""


class OfSeveral(Answer):
    """The answer to a call on several limits."""

    results: Any

    @property
    def denied_by(self) -> RequestResult | None:
        """The denying request with the longest wait; None if the call was allowed."""
        deny = () if self.ok else denying(self.results)
        return max(deny, key=lambda each: inf if each.retry_after is None else each.retry_after, default=None)

    @property
    def retry_after(self) -> float | None:
        """Denied: seconds until none of them denies; None if one always will."""
        return self.denied_by.retry_after if self.denied_by else None

    @property
    def retry_at(self) -> datetime | None:
        return self.denied_by.retry_at if self.denied_by else None


@dataclass(frozen=True)
class AllResult(OfSeveral):
    """The result of a call on several limits, all or nothing. True if it was allowed; iterates over results."""

    ok: bool
    results: Sequence[RequestResult]
    """In the order of the requests."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """As of Result."""
    error: BaseException | None = None
    """As of Result."""

    def __iter__(self) -> Iterator[RequestResult]:
        return iter(self.results)


@dataclass(frozen=True)
class BorrowResult(Answer):
    """The result of a call that may not have asked the database. True if the call was allowed."""

    ok: bool
    """Whether the tokens were taken."""
    retry_after: float | None
    retry_at: datetime | None
    limited_by: LimitedBy | None = None
    """As of Result."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Retry-After, if it was denied and can pass later."""
    error: BaseException | None = None
    """As of Result."""


@dataclass(frozen=True)
class SettleResult:
    """The result of one limit of a settled hold."""

    name: str
    key: str
    retry_after: float | None
    retry_at: datetime | None
    remaining: float | None
    capacity: float | None
    reset_at: datetime | None


class Value(TypedDict):
    """A limit for a browser, which computes with it: the result of rl_value, as JSON."""

    config: dict[str, Any]
    state: dict[str, Any] | None
    now: float
    blockedUntil: float | None


@dataclass(frozen=True)
class Unsettled:
    """The argument of on_unsettled: a hold that was not settled by the actual use."""

    hold: str | None
    """Its id."""
    used: Any
    """The used with which settle or settle_all can be sent again, for a day; None: everything held."""
    error: BaseException


@dataclass(frozen=True)
class Decision:
    """The argument of on_decision, for a limit that a call takes from, is denied by, or fails on."""

    name: str
    ok: bool
    retry_after: float | None
    limited_by: LimitedBy | None
    """As of Result; None after an error."""
    seconds: float
    """The duration of the call, including its wait for a connection."""
    error: BaseException | None
    """Without a decision: the driver's error, which shows no parameters. ok is true if the call failed open."""
    remembered: bool = False
    """Whether the process denied it without a database call, by remember_denials."""


class RateLimitExceeded(Exception):
    """A denial, raised by the client and not by the database: it aborts no transaction."""

    def __init__(
        self,
        name: str,
        retry_after: float | None = None,
        retry_at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, retry_after, retry_at, headers)
        self.name = name
        self.retry_after = retry_after
        """Seconds until the same call succeeds; None if it never can."""
        self.retry_at = retry_at
        self.headers: Mapping[str, str] = retry_header(retry_after) if headers is None else headers
        """Headers of a response 429: those that the call asked for, or Retry-After."""

    def __str__(self) -> str:
        wait = "this call can never pass" if self.retry_after is None else f"retry after {self.retry_after:g} s"
        return f'rate limit "{self.name}" exceeded: {wait}'

    @classmethod
    def from_error(cls, error: BaseException) -> RateLimitExceeded | None:
        """The denial in an error of any driver or ORM, such as one of a trigger; None if it is another error."""
        found = []
        for each in chain(error):
            if isinstance(each, RateLimitExceeded):
                return each
            if (denial := _denial(each)) is not None:
                found.append(denial)
        if not found:
            return None
        # An error that wraps another may have the SQLSTATE and no DETAIL.
        denial = max(found, key=len)
        name, wait = denial.get("name", ""), denial.get("retryAfter")
        if wait is None:
            return cls(name)
        return cls(name, wait / 1000, datetime.now(timezone.utc) + timedelta(milliseconds=wait))


class UnknownLimit(LookupError):
    """There is no limit with this name, and the call passed no config."""


class SetupError(RuntimeError):
    """The database isn't set up for the call. The message has instructions; the cause is the driver's error."""


def told(answer: T, throws: bool, name: str | None = None) -> T:
    """The answer or, with throws, a denial as an error. name: of the limit; None: of the one that denies."""
    of: Any = answer
    if throws and not of.ok:
        named = of.denied_by.name if name is None and of.denied_by else name or ""
        raise RateLimitExceeded(named, of.retry_after, of.retry_at, getattr(of, "headers", None))
    return answer


def tell_unsettled(
    hears: Callable[[Unsettled], object] | None, hold: str | None, used: Any, error: BaseException
) -> None:
    """Calls on_unsettled; None: logs a warning. Raises nothing."""
    if hears is None:
        log.warning("the hold %s was not settled by what was used: %r", hold, error)
        return
    try:
        hears(Unsettled(hold, used, error))
    except Exception:
        log.exception("on_unsettled failed")


def retry_header(retry_after: float | None) -> dict[str, str]:
    return {} if retry_after is None else {"Retry-After": str(ceil(retry_after))}


def aged(denial: Any, seconds: float) -> Any:
    """A Result or AllResult, seconds later."""
    if isinstance(denial, AllResult):
        results = [each if each.retry_after is None else _less(each, seconds) for each in denial.results]
        found = replace(denial, results=results)
    else:
        found = denial if denial.retry_after is None else _less(denial, seconds)
    return replace(found, headers={name: _aged(name, text, found, seconds) for name, text in denial.headers.items()})


def _less(denial: Any, seconds: float) -> Any:
    """A request of a list denies nothing any more when its wait has ended."""
    left = max(0.0, denial.retry_after - seconds)
    if left == 0 and isinstance(denial, RequestResult):
        return replace(denial, retry_after=None, retry_at=None, limited_by=None)
    return replace(denial, retry_after=left)


def _aged(name: str, text: str, denial: Any, seconds: float) -> str:
    """A header with this number of seconds subtracted."""
    if name.lower() == "retry-after" and denial.retry_after is not None:
        return str(ceil(denial.retry_after))
    return re.sub(r"(?<=;t=)\d+", lambda found: str(max(0, int(found[0]) - floor(seconds))), text)


def denying(results: Iterable[RequestResult]) -> list[RequestResult]:
    """The denying requests. If one can never pass, none has a wait; so if another has one, a request without a wait
    is a dry run, which would deny and doesn't."""
    deny = [each for each in results if each.limited_by is not None]
    return [each for each in deny if each.retry_after is not None] or deny


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it wraps, in .orig of SQLAlchemy or in __cause__."""
    seen: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop(0)
        if each is None or each in seen:
            continue
        seen.append(each)
        yield each
        # asyncio ends timed work by a CancelledError.
        todo += [getattr(each, "orig", None), None if isinstance(each.__cause__, CancelledError) else each.__cause__]


def innermost(error: BaseException) -> BaseException:
    """The driver's error: an error that wraps it may show the parameters of a call, and so its key."""
    return list(chain(error))[-1]


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of an error of psycopg, asyncpg and similar drivers."""
    found = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return found if isinstance(found, str) else None


def _denial(error: BaseException) -> dict[str, Any] | None:
    """The denial in a driver's error; None if it isn't one, or doesn't show it."""
    diag = getattr(error, "diag", None)
    detail = getattr(diag, "message_detail", None) or getattr(error, "detail", None)
    state = sqlstate(error)
    if state == "PGRST":  # the form of PostgREST, by ratelimit.error_style
        message = _object(getattr(diag, "message_primary", None) or next(iter(error.args), None))
        return _object(message.get("details")) if message.get("code") == "PT429" else None
    return _object(detail) if state == "PT429" else None


def _object(text: Any) -> dict[str, Any]:
    """The object in JSON; an empty one if there is none, or the JSON was cut."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
