"""Budgets of calls to language models, on any of several limits at once: an estimate is held before the call, and
settled with the usage that the model reports. Knows no model: openai, langchain and litellm next to it make the calls.

    budget = Budget(limiter, [
        {"name": "generations", "key": "acme"},
        {"name": "llmTokens", "key": "ada", "count": "tokens"},
        {"name": "microUsd", "key": "acme", "count": lambda usage: usage.input_tokens * 3 + usage.output_tokens * 15},
    ])
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any, Generic, Literal, TypedDict, TypeVar, Union

from postgres_rate_limit._calls import Key, Request, seconds_of
from postgres_rate_limit._client import AsyncHoldAll, AsyncRateLimiter, HoldAll, OnExpiry, Pending, RateLimiter
from postgres_rate_limit._configs import Config
from postgres_rate_limit._results import chain, innermost

__all__ = ["Budget", "Limit", "ModelCall", "Usage", "estimate_input"]

log = logging.getLogger("postgres_rate_limit")
L = TypeVar("L", RateLimiter[Any], AsyncRateLimiter[Any])


@dataclass(frozen=True)
class Usage:
    """What a call is estimated to use, or has used."""

    input_tokens: int
    output_tokens: int
    model: str = ""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


Count = Union[float, Literal["tokens", "input_tokens", "output_tokens"], Callable[[Usage], float]]


class _Named(TypedDict):
    name: str


class Limit(_Named, total=False):
    """A limit that a call takes from. count: 1, such as for requests and slots, tokens, or a price. It is computed
    twice, of the estimate and of the usage."""

    key: Key
    count: Count
    config: Config


Limits = Union[Iterable[Limit], Callable[[Mapping[str, Any]], Iterable[Limit]]]


def estimate_input(request: Mapping[str, Any]) -> int:
    """A token for three bytes of what is sent as text, which is more than most texts have."""
    sent = [request[each] for each in _SENT if request.get(each)]
    return ceil(len(json.dumps(sent, ensure_ascii=False, default=str).encode()) / 3)


# The fields in which requests have what the model reads.
_SENT = ("messages", "instructions", "input", "prompt", "tools")


class Budget(Generic[L]):
    """The limits of calls to a model. Threads and tasks may share it."""

    def __init__(
        self,
        limiter: L,
        limits: Limits,
        *,
        output_tokens: int = 1000,
        estimate: Callable[[Mapping[str, Any]], int] = estimate_input,
        ttl: timedelta | float = timedelta(minutes=2),
        on_expiry: OnExpiry = "refund",
    ) -> None:
        """
        limiter: on a pool or an engine, since a hold is committed before the call.
        limits: or a function that returns them, by what is sent to the model.
        output_tokens: the estimate where the request has no maximum.
        estimate: returns the tokens of the prompt.
        ttl: until a hold expires; longer than the longest call, and for streams than the longest pause in one.
        on_expiry: what becomes of a hold whose process died; "charge": it stays taken.
        """
        self.limiter: L = limiter
        self._limits = limits if callable(limits) else list(limits)
        self._output_tokens, self._estimate = output_tokens, estimate
        self._on_expiry: OnExpiry = on_expiry
        self._ttl = ttl

    def call(self, request: Mapping[str, Any]) -> ModelCall:
        """What is held for the request: what is sent to the model, by the fields of OpenAI."""
        given = self._limits(request) if callable(self._limits) else self._limits
        # OpenAI has objects that say that a field isn't given.
        most = next((request[each] for each in _MOST if isinstance(request.get(each), int)), self._output_tokens)
        estimate = Usage(self._estimate(request), most * (request.get("n") or 1), str(request.get("model") or ""))
        return ModelCall(list(given), estimate, seconds_of(self._ttl) / 2)

    def hold(self, call: ModelCall, id: str | None = None) -> HoldAll:
        """Takes the estimate; entered, it raises RateLimitExceeded with the wait."""
        if not isinstance(self.limiter, RateLimiter):
            raise TypeError("the budget has an AsyncRateLimiter; allowed here: a RateLimiter")
        return self.limiter.hold_all(
            call.requests, ttl=self._ttl, id=id, on_expiry=self._on_expiry, on_exception="charge"
        )

    def hold_async(self, call: ModelCall, id: str | None = None) -> Pending[AsyncHoldAll]:
        """As hold."""
        if not isinstance(self.limiter, AsyncRateLimiter):
            raise TypeError("the budget has a RateLimiter; allowed here: an AsyncRateLimiter")
        return self.limiter.hold_all(
            call.requests, ttl=self._ttl, id=id, on_expiry=self._on_expiry, on_exception="charge"
        )


# The fields by which requests bound the tokens of an answer.
_MOST = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class ModelCall:
    """One call of a model."""

    def __init__(self, limits: list[Limit], estimate: Usage, interval: float) -> None:
        self._limits, self.estimate = limits, estimate
        self.interval, self._next = interval, time.monotonic() + interval
        self.has_begun = False
        """Whether some of the answer has come, so that the model has worked."""

    @property
    def requests(self) -> list[Request]:
        """What is held."""
        made: list[Request] = []
        for limit in self._limits:
            request: Any = {**limit, "count": _count(limit, self.estimate)}
            made.append(request)
        return made

    def used(self, input_tokens: int | None, output_tokens: int | None) -> dict[str, float] | None:
        """What is settled, by the names of the limits. All that was held (None), if there is no report, or if a count
        fails on it: the answer has come, and is paid."""
        if input_tokens is None or output_tokens is None:
            return None
        usage = Usage(input_tokens, output_tokens, self.estimate.model)
        try:
            return {limit["name"]: _count(limit, usage) for limit in self._limits}
        except Exception:
            log.exception("the count of what a call used failed: all that it held is settled")
            return None

    def failed(self, error: BaseException, used: Any) -> Any:
        """What is settled after an error: what was reported; nothing if it was never sent; what has no tokens if it was
        refused; or else all (None)."""
        if used is not None or self.has_begun:
            return used
        for each in chain(error):
            status = getattr(each, "status_code", None)
            if isinstance(status, int) and status >= 400:
                # After these the model may have worked.
                return None if status in (408, 504) else self.used(0, 0)
            if type(each).__name__ in ("ConnectError", "ConnectTimeout") or isinstance(each, ConnectionRefusedError):
                return 0
        return None

    def is_due(self) -> bool:
        """Whether the hold of a stream has to be extended: halfway to its expiry."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self.interval
        return True

    def is_left(self) -> bool:
        """Whether the hold expired so long ago that no end of the call will be reported."""
        return time.monotonic() > self._next + self.interval + _DAY


_DAY = 86_400


def extend(hold: HoldAll) -> None:
    """An error is logged only: the answer goes on, and is settled all the same."""
    try:
        hold.extend()
    except Exception as failure:
        _log_not_extended(failure)


async def extend_async(hold: AsyncHoldAll) -> None:
    """As extend."""
    try:
        await hold.extend()
    except Exception as failure:
        _log_not_extended(failure)


def _log_not_extended(failure: Exception) -> None:
    log.warning("a hold was not extended: %r", innermost(failure))


def _count(limit: Limit, usage: Usage) -> float:
    count = limit.get("count", 1)
    if callable(count):
        return count(usage)
    return float(getattr(usage, count)) if isinstance(count, str) else count
