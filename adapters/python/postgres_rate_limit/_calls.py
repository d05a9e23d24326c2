"""The calls of the client as SQL, and the reading of their rows. Knows no driver: parameters are $1, $2, … in order,
each once, and are texts, floats and booleans; a time is sent as microseconds since 1970."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from math import isfinite
from typing import Any, Generic, Literal, TypedDict, TypeVar, Union, cast
from uuid import UUID

from postgres_rate_limit._configs import Config, json_of
from postgres_rate_limit._results import (
    AllResult,
    HoldRequestResult,
    LimitedBy,
    RequestResult,
    Result,
    SettleResult,
    SetupError,
    UnknownLimit,
    Value,
    chain,
    denying,
    retry_header,
    sqlstate,
    time_of,
)

T = TypeVar("T")
Key = Union[str, int, UUID]
HeaderStyle = Literal["ietf", "github"]
OnExpiry = Literal["refund", "charge"]
Used = Union[float, Mapping[str, float]]
Rows = Sequence[Sequence[Any]]
Limit = tuple[str, str, Union[str, None]]
"""Its name, the key, and the config that a call passes."""
Span = Union[timedelta, float]
Verdict = tuple[str, bool, Union[float, None], Union[LimitedBy, None]]
"""Name, ok, retry_after and limited_by of a limit."""


class Named(TypedDict):
    name: str


class Request(Named, total=False):
    """One of the takes of limit_all and hold_all."""

    key: Key
    count: float
    reserve: bool
    config: Config


@dataclass(frozen=True)
class Call(Generic[T]):
    sql: str
    """With @ before the names of functions, in place of their schema."""
    values: tuple[Any, ...]
    read: Callable[[Rows], T]
    decides: Callable[[T], Iterable[Verdict]] | None = None
    """Returns the verdict on each limit, if the call takes tokens."""
    names: tuple[str, ...] = ()
    """The names of those limits."""
    opened: Callable[[BaseException], T] | None = None
    """Returns the answer if the call goes unchecked because of this error; None: it never does."""
    id: tuple[Any, ...] | None = None
    """The id under which a denial of the call is remembered; None: it isn't."""
    count: float = 0
    slots: frozenset[str] = frozenset()
    """The concurrency limits from which the call takes slots."""
    forgets: tuple[tuple[str, str], ...] | None = None
    """The names and keys for which the call makes denials obsolete; empty: for all."""
    shares: bool = False
    """Whether the call may go in a statement of rl_limit_each."""
    headers: HeaderStyle | None = None
    """The style of the headers that it asks for, if it shares."""


@dataclass(frozen=True)
class Taken(Result):
    """The result of rl_acquire, rl_hold or rl_take."""

    id: str | None = None
    expires_at: datetime | None = None
    held: float | None = None
    """The tokens held or taken."""
    value: str | None = None
    """The result of rl_value, after rl_take."""


@dataclass(frozen=True)
class HeldAll(AllResult):
    """The result of rl_hold_all."""

    results: Sequence[HoldRequestResult]
    id: str | None = None
    expires_at: datetime | None = None


def key_of(key: Key) -> str:
    if isinstance(key, (str, int, UUID)):
        text = str(key)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("key has half a surrogate; allowed: text that UTF-8 can be made of") from None
        return text
    raise TypeError(
        f"key is of type {type(key).__name__}; allowed: str, int, UUID. Omit it for the limit that all share"
    )


def seconds_of(span: Span) -> float:
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


_TIME = "CAST(extract(epoch FROM {}) * 1000000 AS int8)"
_LIMIT = f"r.retry_after, {_TIME.format('r.retry_at')}, r.remaining, r.capacity, {_TIME.format('r.reset_at')}"
_FORMS = {
    "text": "CAST(? AS text)",
    "number": "CAST(? AS float8)",
    "flag": "CAST(? AS boolean)",
    # Sent as text, because drivers encode jsonb in different ways.
    "json": "CAST(CAST(? AS text) AS jsonb)",
    "when": "CAST(CAST(? AS text) AS timestamptz)",
    "span": "make_interval(secs => CAST(? AS float8))",
    "style": "(string_to_array(CAST(? AS text), ','))[r.n]",
    "limit": _LIMIT,
    "result": f"r.ok, {_LIMIT}, r.limited_by",
    "request": f"r.name, r.key, r.ok, {_LIMIT}, r.limited_by",
    "expires": _TIME.format("r.expires_at"),
}


@lru_cache
def _sql(text: str, function: str = "") -> str:
    """The statement with its forms, and with $1, $2, … for its values."""
    first, *others = text.format(function=function, **_FORMS).split("?")
    return first + "".join(f"${n}{part}" for n, part in enumerate(others, 1))


# The statements. The client throws, because a denial thrown by the database aborts the transaction: throws is false.
_ONE = "SELECT {result} FROM @{function}({text}, {text}, {number}, {flag}, false, {json}) AS r"
_ONE_WITH_HEADERS = """
    SELECT {result}, CAST(@rl_headers({text}, r, key => {text}, style => {text}, config => {json}) AS text)
    FROM @{function}({text}, {text}, {number}, {flag}, false, {json}) AS r"""
_EACH = "SELECT {result}, r.error IS NOT NULL FROM @rl_limit_each({json}, {span}) AS r ORDER BY r.n"
# In a SELECT of its own the list is parsed once, not for each row.
_EACH_WITH_HEADERS = """
    SELECT {result}, CASE WHEN r.error IS NULL AND {style} <> '' THEN CAST(@rl_headers(r.name, r, key => r.key,
        style => {style}, config => (SELECT {json}) -> (r.n - 1) -> 'config') AS text) END, r.error IS NOT NULL
    FROM @rl_limit_each({json}, {span}) AS r ORDER BY r.n"""
_ALL = "SELECT {request} FROM @{function}({json}) AS r ORDER BY r.n"
# The rows with their configs, which rl_headers_all needs for limits that aren't defined.
_ALL_WITH_HEADERS = """
    WITH r AS MATERIALIZED (SELECT * FROM @{function}({json}))
    SELECT {request}, (SELECT CAST(@rl_headers_all((SELECT jsonb_agg(to_jsonb(r) || ({json} -> (r.n - 1)) ORDER BY r.n)
        FROM r), {text}) AS text)) FROM r ORDER BY r.n"""
# The kind of the key, because an override may have another one, at a time after the take.
_TAKE = """
    SELECT {result}, NULL, NULL, r.taken, CAST(@rl_value({text}, {text}, {json}) AS text)
    FROM @rl_take({text}, {text}, {number}, {number}, false, {json}) AS r"""
_CREDIT = "SELECT {result} FROM @rl_credit({text}, {text}, {number}, {when}, {json}) AS r"
_RESET = "SELECT r FROM @rl_reset({text}, {text}) AS r"
_PRUNE = "SELECT r FROM @rl_prune(CAST(? AS int), {span}) AS r"
_VALUE = "SELECT CAST(r AS text) FROM @rl_value({text}, {text}, {json}) AS r"
_ACQUIRE = """
    SELECT {result}, r.lease, {expires}, NULL, NULL FROM @rl_acquire({text}, {text}, {number}, false, {json}) AS r"""
_EXTEND = f"SELECT {_TIME.format('r')} FROM @rl_extend({{text}}, {{json}}) AS r"
_RELEASE = "SELECT r FROM @rl_release({text}, {json}) AS r"
_HOLD = """
    SELECT {result}, r.hold, {expires}, r.held, NULL
    FROM @rl_hold({text}, {text}, {number}, {span}, {text}, {number}, {text}, {flag}, false, {json}) AS r"""
_SETTLE = "SELECT {result} FROM @rl_settle({text}, {number}) AS r"
_HOLD_ALL = """
    SELECT {request}, r.held, r.hold, {expires} FROM @rl_hold_all({json}, {span}, {text}, {text}) AS r ORDER BY r.n"""
_SETTLE_ALL = "SELECT r.name, r.key, {limit} FROM @rl_settle_all({text}, {json}) AS r"
_DEFINE = "SELECT r.key, @rl_define(r.key, r.value) FROM jsonb_each({json}) AS r"
_STYLES = ("ietf", "github")


def _limit(after: Any, at: Any, remaining: Any, capacity: Any, reset: Any, *by: Any) -> Any:
    return after, time_of(at), remaining, capacity, time_of(reset), *by


def _result(row: Sequence[Any], headers: str | None = None) -> Result:
    ok, after, at, remaining, capacity, reset, by = row[:7]
    found = json.loads(headers) if headers else retry_header(None if ok else after)
    return Result(bool(ok), after, time_of(at), remaining, capacity, time_of(reset), by, found)


def _request(row: Sequence[Any]) -> RequestResult:
    name, key, ok = row[:3]
    return RequestResult(name, key, bool(ok), *_limit(*row[3:9]))


def _read_result(rows: Rows) -> Result:
    return _result(rows[0], *rows[0][7:])


def _read_flag(rows: Rows) -> bool:
    return bool(rows[0][0])


def _read_taken(rows: Rows) -> Taken:
    id, expires, held, value = rows[0][7:]
    return Taken(**vars(_result(rows[0])), id=id, expires_at=time_of(expires), held=held, value=value)


def _read_all(rows: Rows) -> AllResult:
    results = [_request(row) for row in rows]
    answer = AllResult(not results or results[0].ok, results)
    told = json.loads(rows[0][9]) if rows and len(rows[0]) > 9 else retry_header(answer.retry_after)
    return replace(answer, headers=told)


# The schema of the functions: found by search_path, or else that of the SQL file or of the extension. And of statements
# that calls share the seconds of lock_wait, far below those after which the server looks for a deadlock, and the
# isolation level.
FIND = """
    SELECT (SELECT CAST(n.nspname AS text)
        FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE p.proname = 'rl_limit' AND (pg_catalog.pg_function_is_visible(p.oid) OR n.nspname = 'ratelimit'
            OR n.oid = (SELECT extnamespace FROM pg_catalog.pg_extension WHERE extname = 'ratelimit'))
        ORDER BY pg_catalog.pg_function_is_visible(p.oid) DESC, n.nspname = 'ratelimit' LIMIT 1),
    CAST(LEAST(0.005, extract(epoch FROM CAST(pg_catalog.current_setting('deadlock_timeout') AS interval)) / 10)
        AS float8),
    pg_catalog.current_setting('transaction_isolation')"""


class Calls:
    """The limits of a client, and the calls on them."""

    def __init__(self, limits: Mapping[str, Config] | Iterable[str], defined: bool, schema: str | None) -> None:
        if isinstance(limits, str):
            raise TypeError(
                "limits is a text; allowed: a dict of names and configs, or with defined=True a list of names"
            )
        self.names = tuple(limits)
        self.configs = {name: json_of(limits[name]) for name in limits} if isinstance(limits, Mapping) else {}
        if not (defined or isinstance(limits, Mapping)):
            raise TypeError("limits are names without configs; allowed with defined=True only")
        if schema is not None and not re.fullmatch(r"\w{1,63}", schema):
            raise ValueError(f"schema is {schema!r}; allowed: letters, digits and _")
        self.defined, self.schema = defined, schema
        self.place = None if schema is None else f'"{schema}".'
        """The schema before the names of functions. None: it has to be found, by FIND."""
        self.lock_wait: float | None = None
        """Seconds for which a shared statement waits for rows; None: to be found, by FIND."""
        self.serializable = False

    def found(self, rows: Rows) -> str:
        """Takes the result of FIND."""
        ((name, self.lock_wait, isolation),) = rows
        self.serializable = isolation == "serializable"
        if self.schema is None:
            if name is None:
                raise SetupError(
                    "the database has no rate limits: run CREATE EXTENSION ratelimit or, where there is no extension, "
                    "python -m postgres_rate_limit install. If they are in a schema of another name, pass schema=…"
                )
            self.place = '"' + name.replace('"', '""') + '".'
        return self.place or ""

    def config(self, name: str, config: Config | None) -> str | None:
        """The config that a call passes."""
        if config is not None:
            return json_of(config)
        if name not in self.names:
            known = ", ".join(f'"{each}"' for each in self.names) or "none"
            raise UnknownLimit(f'there is no limit "{name}"; there are: {known}. Or pass its config')
        return None if self.defined else self.configs[name]

    def of(self, name: str, key: Key, config: Config | None) -> Limit:
        return name, key_of(key), self.config(name, config)

    def limit(
        self, function: str, limit: Limit, count: float, reserve: bool = False, headers: HeaderStyle | None = None
    ) -> Call[Result]:
        """A call of rl_limit or rl_check."""
        name, key, own = limit
        before = () if headers is None else (name, key, headers, own)
        values = *before, name, key, float(count), reserve, own
        fields = _of_one(name, Result)
        if function == "rl_limit":
            fields |= {"shares": headers is None or headers in _STYLES, "headers": headers}
        else:
            fields |= {"decides": None, "names": ()}
        fields |= {"id": ((name, key), "limit", own, reserve, headers), "count": float(count)}
        return Call(_sql(_ONE if headers is None else _ONE_WITH_HEADERS, function), values, _read_result, **fields)

    def each(self, requests: Sequence[tuple[str, HeaderStyle | None]]) -> Call[list[Result | None]]:
        """Requests as request_of makes them, each on its own, and the style of the headers that it asks for. None: the
        request has an error, and has taken nothing."""

        def read(rows: Rows) -> list[Result | None]:
            return [None if row[-1] else _result(row, *row[7:-1]) for row in rows]

        text = f"[{', '.join(request for request, _ in requests)}]"
        if not any(style for _, style in requests):
            return Call(_sql(_EACH), (text, self.lock_wait), read)
        styles = ",".join(style or "" for _, style in requests)
        return Call(_sql(_EACH_WITH_HEADERS), (styles, styles, text, text, self.lock_wait), read)

    def take(self, limit: Limit, at_least: float, at_most: float) -> Call[Taken]:
        name, key, own = limit
        values = *limit, name, key, float(at_most), float(at_least), own
        id = (name, key), "take", own
        return Call(_sql(_TAKE), values, _read_taken, id=id, count=float(at_least), **_of_one(name, Taken))

    def kind(self, name: str, config: Config | None) -> str | None:
        """The kind of the limit; None: unknown here."""
        own = self.config(name, config) or self.configs.get(name)
        return None if own is None else str(json.loads(own).get("kind"))

    def credit(self, limit: Limit, count: float, taken_at: datetime | None) -> Call[Result]:
        name, key, own = limit
        if taken_at is not None and taken_at.tzinfo is None:
            raise ValueError(f"taken_at is {taken_at}; allowed: a time with an offset, such as timezone.utc")
        at = None if taken_at is None else taken_at.isoformat()
        return Call(_sql(_CREDIT), (name, key, float(count), at, own), _read_result, forgets=((name, key),))

    def reset(self, limit: Limit) -> Call[bool]:
        return Call(_sql(_RESET), limit[:2], _read_flag, forgets=(limit[:2],))

    def prune(self, max_rows: int, undefined_idle: Span | None) -> Call[int]:
        idle = None if undefined_idle is None else seconds_of(undefined_idle)
        return Call(_sql(_PRUNE), (max_rows, idle), lambda rows: int(rows[0][0]))

    def value(self, limit: Limit) -> Call[Value]:
        return Call(_sql(_VALUE), limit, lambda rows: cast(Value, json.loads(rows[0][0])))

    def _requests(self, requests: Iterable[Request]) -> tuple[str, list[Target]]:
        """The text of the requests, each with the config that it needs, and their targets."""
        texts, targets = [], []
        for request in requests:
            name = request["name"]
            fields: dict[str, Any] = {**request, "key": key_of(request.get("key", ""))}
            own = self.config(name, fields.pop("config", None))
            text = json.dumps(fields, allow_nan=False)
            texts.append(text if own is None else f'{text[:-1]}, "config": {own}}}')
            targets.append((name, str(fields["key"]), float(fields.get("count", 1))))
        return f"[{', '.join(texts)}]", targets

    def limit_all(self, function: str, requests: Iterable[Request], headers: HeaderStyle | None) -> Call[AllResult]:
        """A call of rl_limit_all or rl_check_all."""
        text, targets = self._requests(requests)

        def opened(error: BaseException) -> AllResult:
            return AllResult(True, [RequestResult(name, key, True) for name, key, _ in targets], error=error)

        fields: dict[str, Any] = {"id": (None, "all", text, headers), "opened": opened}
        if function == "rl_limit_all":
            fields |= _of_several(targets)
        if headers is None:
            return Call(_sql(_ALL, function), (text,), _read_all, **fields)
        return Call(_sql(_ALL_WITH_HEADERS, function), (text, text, headers), _read_all, **fields)

    def acquire(self, limit: Limit, count: float) -> Call[Taken]:
        name, key, own = limit
        values = name, key, float(count), own
        return Call(_sql(_ACQUIRE), values, _read_taken, slots=frozenset((name,)), **_of_one(name, Taken))

    def extend(self, name: str, lease: str | None, config: Config | None) -> Call[datetime | None]:
        return Call(_sql(_EXTEND), (lease, self.config(name, config)), lambda rows: time_of(rows[0][0]))

    def release(self, name: str, lease: str | None, config: Config | None) -> Call[bool]:
        return Call(_sql(_RELEASE), (lease, self.config(name, config)), _read_flag)

    def hold(
        self, limit: Limit, count: float, ttl: Span, id: str | None, least: float | None, on_expiry: str, reserve: bool
    ) -> Call[Taken]:
        name, key, own = limit
        at_least = None if least is None else float(least)
        values = name, key, float(count), seconds_of(ttl), id, at_least, on_expiry, reserve, own
        return Call(_sql(_HOLD), values, _read_taken, **_of_one(name, Taken, held=float(count)))

    def settle(self, hold: str | None, used: float | None) -> Call[Result]:
        return Call(_sql(_SETTLE), (hold, None if used is None else float(used)), _read_result)

    def hold_all(
        self, requests: Iterable[Request], ttl: Span, id: str | None, on_expiry: str
    ) -> Call[HeldAll]:
        requests = list(requests)
        text, targets = self._requests(requests)
        slots = frozenset(
            each["name"] for each in requests if self.kind(each["name"], each.get("config")) == "concurrency"
        )

        def read(rows: Rows) -> HeldAll:
            results = [HoldRequestResult(**vars(_request(row)), held=row[9]) for row in rows]
            hold, expires = next((row[10:] for row in rows if row[10] is not None), (None, None))
            return HeldAll(results[0].ok, results, id=hold, expires_at=time_of(expires))

        def opened(error: BaseException) -> HeldAll:
            return HeldAll(True, [HoldRequestResult(*each[:2], True, held=each[2]) for each in targets], error=error)

        values = text, seconds_of(ttl), id, on_expiry
        return Call(_sql(_HOLD_ALL), values, read, opened=opened, slots=slots, **_of_several(targets))

    def settle_all(self, hold: str | None, used: float | Mapping[str, float] | None) -> Call[list[SettleResult]]:
        def read(rows: Rows) -> list[SettleResult]:
            return [SettleResult(name, key, *_limit(*limit)) for name, key, *limit in rows]

        text = None if used is None else json.dumps(dict(used) if isinstance(used, Mapping) else used, allow_nan=False)
        return Call(_sql(_SETTLE_ALL), (hold, text), read)

    def define(self) -> Call[list[str]]:
        self._needs_definitions("define()")
        configs = ", ".join(f"{json.dumps(name)}: {config}" for name, config in self.configs.items())

        def read(rows: Rows) -> list[str]:
            changed = {row[0] for row in rows if row[1]}
            return [name for name in self.names if name in changed]

        return Call(_sql(_DEFINE), (f"{{{configs}}}",), read, forgets=())

    def sql(self) -> str:
        self._needs_definitions("sql()")
        made = ((name.replace("'", "''"), config.replace("'", "''")) for name, config in self.configs.items())
        place = self.place if self.schema is not None else ""
        return "".join(f"SELECT {place}rl_define('{name}', '{config}');\n" for name, config in made)

    def _needs_definitions(self, call: str) -> None:
        if not self.defined:
            raise ValueError(f"{call}: the limits come with each call; pass defined=True to the limiter to define them")
        if not self.configs and self.names:
            raise ValueError(f"{call}: the limiter has names without configs")

    def explain(self, error: BaseException, name: str | None) -> SetupError | None:
        """An error with instructions, if the database shows that it isn't set up for the call."""
        what = "a limit" if name is None else f'rate limit "{name}"'
        for each in chain(error):
            state, text = sqlstate(each), str(each)
            if (state == "42883" and "rl_" in text) or state == "3F000":
                if self.schema is None:
                    self.place = None  # it may have moved
                where = "the database" if self.schema is None else f'schema "{self.schema}"'
                return SetupError(
                    f"{where} doesn't have what this call needs ({text.splitlines()[0]}): to upgrade, run ALTER "
                    "EXTENSION ratelimit UPDATE or, where there is no extension, python -m postgres_rate_limit install"
                )
            if state == "42704" and self.defined and "is not defined" in text:
                return SetupError(f"{what} is not defined in the database: call define(), or run sql() in a migration")
            if state == "42501" and "override rate limit" in text:
                return SetupError(f"{what} is defined in the database, and the call brings a config: pass defined=True")
        return None


Target = tuple[str, str, float]
"""Name, key and count of a request."""


def request_of(call: Call[Result]) -> str | None:
    """The request of a call that shares, in JSON; None if that can't say it, or the database can't read it."""
    name, key, count, reserve, own = call.values[-5:]
    if not isfinite(count):
        return None
    text = json.dumps({"name": name, "key": key, "count": count, "reserve": reserve})
    text = text if own is None else f'{text[:-1]}, "config": {own}}}'
    return None if "\\u0000" in text else text


def _verdict(name: str, answer: Result | RequestResult) -> Verdict:
    return name, answer.ok, answer.retry_after, answer.limited_by


def _of_one(name: str, made: type[Result], **unchecked: Any) -> dict[str, Any]:
    """The fields of a call that takes from one limit. made, unchecked: its answer if it goes unchecked."""
    return {
        "names": (name,),
        "decides": lambda answer: [_verdict(name, answer)],
        "opened": lambda error: made(True, error=error, **unchecked),
    }


def _of_several(targets: Iterable[Target]) -> dict[str, Any]:
    """The fields of a call that takes from several limits. Denied: it was by the denying requests."""

    def decides(answer: AllResult) -> Iterable[Verdict]:
        return [_verdict(each.name, each) for each in (answer.results if answer.ok else denying(answer.results))]

    return {"names": tuple(name for name, _, _ in targets), "decides": decides}
