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
    OfSeveral,
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
class HeldAll(OfSeveral):
    """The result of rl_hold_all."""

    ok: bool
    id: str | None
    expires_at: datetime | None
    results: Sequence[HoldRequestResult]
    error: BaseException | None = None


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


def seconds_of(span: timedelta | float) -> float:
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


def _time(column: str) -> str:
    return f"CAST(extract(epoch FROM {column}) * 1000000 AS int8)"


def _number(sql: str) -> str:
    """The statement with $1, $2, … in place of each ?."""
    first, *others = sql.split("?")
    return first + "".join(f"${n}{part}" for n, part in enumerate(others, 1))


@lru_cache(maxsize=256)
def _statement(select: str, function: str, arguments: tuple[str, ...], rest: str) -> str:
    return _number(f"SELECT {select} FROM @{function}({', '.join(arguments)}) AS r{rest}")


_TEXT = "CAST(? AS text)"
_NUMBER = "CAST(? AS float8)"
_FLAG = "CAST(? AS boolean)"
# Sent as text, because drivers encode jsonb in different ways.
_JSON = "CAST(CAST(? AS text) AS jsonb)"
_WHEN = "CAST(CAST(? AS text) AS timestamptz)"
# The client throws, because a denial thrown by the database aborts the transaction.
_UNTHROWN = ("false", None)
_SPAN = "make_interval(secs => CAST(? AS float8))"
_LIMIT = f"r.retry_after, {_time('r.retry_at')}, r.remaining, r.capacity, {_time('r.reset_at')}"
_RESULT = f"r.ok, {_LIMIT}, r.limited_by"
_REQUEST = f"r.name, r.key, {_RESULT}"
_STYLES = ("ietf", "github")


def _headers(name: str, key: str, style: str, config: str) -> str:
    return f"CAST(@rl_headers({name}, r, key => {key}, style => {style}, config => {config}) AS text)"


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

    def found(self, rows: Rows) -> None:
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

    def _make(
        self,
        select: str,
        function: str,
        arguments: Sequence[tuple[str, Any]],
        read: Callable[[Rows], T],
        rest: str = "",
        before: Sequence[Any] = (),
        **fields: Any,
    ) -> Call[T]:
        """SELECT … FROM function(arguments) AS r; ? stands for a value, @ for the schema. before: the values in
        select. fields: those of the call."""
        sql = _statement(select, function, tuple([form for form, _ in arguments]), rest)
        return Call(sql, (*before, *[value for form, value in arguments if "?" in form]), read, **fields)

    def config(self, name: str, config: Config | None) -> str | None:
        """The config that a call passes."""
        if config is not None:
            return json_of(config)
        if name not in self.names:
            known = ", ".join(f'"{each}"' for each in self.names) or "none"
            raise UnknownLimit(f'there is no limit "{name}"; there are: {known}. Or pass its config')
        return None if self.defined else self.configs[name]

    def _target(self, name: str, key: Key, config: Config | None) -> tuple[str, str, str | None]:
        return name, key_of(key), self.config(name, config)

    def limit(
        self,
        function: Literal["rl_limit", "rl_check"],
        name: str,
        key: Key,
        count: float,
        reserve: bool,
        headers: HeaderStyle | None,
        config: Config | None,
    ) -> Call[Result]:
        name, key, own = self._target(name, key, config)
        arguments = [(_TEXT, name), (_TEXT, key), (_NUMBER, float(count)), (_FLAG, reserve), _UNTHROWN, (_JSON, own)]
        select, values = _RESULT, []
        if headers is not None:
            select += f", {_headers(_TEXT, _TEXT, _TEXT, _JSON)}"
            values = [name, key, headers, own]
        fields = _of_one(name, Result)
        if function == "rl_limit":
            fields |= {"shares": headers is None or headers in _STYLES, "headers": headers}
        else:
            fields |= {"decides": None, "names": ()}
        fields |= {"id": ((name, key), "limit", own, reserve, headers), "count": float(count)}
        return self._make(select, function, arguments, _read_result, before=values, **fields)

    def each(self, requests: Sequence[tuple[str, HeaderStyle | None]]) -> Call[list[Result | None]]:
        """Requests as request_of makes them, each on its own, and the style of the headers that it asks for. None: the
        request has an error, and has taken nothing."""

        def read(rows: Rows) -> list[Result | None]:
            return [None if row[-1] else _result(row, *row[7:-1]) for row in rows]

        text = f"[{', '.join(request for request, _ in requests)}]"
        select, values = _RESULT, []
        if any(style for _, style in requests):
            style = f"(string_to_array({_TEXT}, ','))[r.n]"
            # In a SELECT of its own the list is parsed once, not for each row.
            headers = _headers("r.name", "r.key", style, f"(SELECT {_JSON}) -> (r.n - 1) -> 'config'")
            select += f", CASE WHEN r.error IS NULL AND {style} <> '' THEN {headers} END"
            styles = ",".join(style or "" for _, style in requests)
            values = [styles, styles, text]
        arguments = [(_JSON, text), (_SPAN, self.lock_wait)]
        select += ", r.error IS NOT NULL"
        return self._make(select, "rl_limit_each", arguments, read, " ORDER BY r.n", before=values)

    def take(self, name: str, key: Key, at_least: float, at_most: float, config: Config | None) -> Call[Taken]:
        name, key, own = self._target(name, key, config)
        # The kind of the key, because an override may have another one, at a time after the take.
        value = f"CAST(@rl_value({_TEXT}, {_TEXT}, {_JSON}) AS text)"
        arguments = [(_TEXT, name), (_TEXT, key), (_NUMBER, float(at_most)), (_NUMBER, float(at_least))]
        arguments += [_UNTHROWN, (_JSON, own)]
        fields = _of_one(name, Taken) | {"id": ((name, key), "take", own), "count": float(at_least)}
        select = f"{_RESULT}, NULL, NULL, r.taken, {value}"
        return self._make(select, "rl_take", arguments, _read_taken, before=[name, key, own], **fields)

    def kind(self, name: str, config: Config | None) -> str | None:
        """The kind of the limit; None: unknown here."""
        own = self.config(name, config) or self.configs.get(name)
        return None if own is None else str(json.loads(own).get("kind"))

    def credit(
        self, name: str, key: Key, count: float, taken_at: datetime | None, config: Config | None
    ) -> Call[Result]:
        name, key, own = self._target(name, key, config)
        if taken_at is not None and taken_at.tzinfo is None:
            raise ValueError(f"taken_at is {taken_at}; allowed: a time with an offset, such as timezone.utc")
        at = None if taken_at is None else taken_at.isoformat()
        arguments = [(_TEXT, name), (_TEXT, key), (_NUMBER, float(count)), (_WHEN, at), (_JSON, own)]
        return self._make(_RESULT, "rl_credit", arguments, _read_result, forgets=((name, key),))

    def reset(self, name: str, key: Key, config: Config | None) -> Call[bool]:
        name, key, _ = self._target(name, key, config)
        arguments = [(_TEXT, name), (_TEXT, key)]
        return self._make("r", "rl_reset", arguments, lambda rows: bool(rows[0][0]), forgets=((name, key),))

    def prune(self, max_rows: int, undefined_idle: timedelta | float | None) -> Call[int]:
        idle = None if undefined_idle is None else seconds_of(undefined_idle)
        arguments = [("CAST(? AS int)", max_rows), (_SPAN, idle)]
        return self._make("r", "rl_prune", arguments, lambda rows: int(rows[0][0]))

    def value(self, name: str, key: Key, config: Config | None) -> Call[Value]:
        name, key, own = self._target(name, key, config)
        arguments = [(_TEXT, name), (_TEXT, key), (_JSON, own)]
        return self._make("CAST(r AS text)", "rl_value", arguments, lambda rows: cast(Value, json.loads(rows[0][0])))

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

    def limit_all(
        self,
        function: Literal["rl_limit_all", "rl_check_all"],
        requests: Iterable[Request],
        headers: HeaderStyle | None,
    ) -> Call[AllResult]:
        text, targets = self._requests(requests)
        fields = _of_several(targets) if function == "rl_limit_all" else {}
        fields["id"] = None, "all", text, headers
        fields["opened"] = lambda error: AllResult(True, [_unchecked(each) for each in targets], error=error)
        if headers is None:
            return self._make(_REQUEST, function, [(_JSON, text)], _read_all, " ORDER BY r.n", **fields)
        # The rows with their configs, which rl_headers_all needs for limits that aren't defined.
        rows = f"SELECT jsonb_agg(to_jsonb(r) || ({_JSON} -> (r.n - 1)) ORDER BY r.n) FROM r"
        of_headers = f"(SELECT CAST(@rl_headers_all(({rows}), {_TEXT}) AS text))"
        sql = f"WITH r AS MATERIALIZED (SELECT * FROM @{function}({_JSON}))"
        sql += f" SELECT {_REQUEST}, {of_headers} FROM r ORDER BY r.n"
        return Call(_number(sql), (text, text, headers), _read_all, **fields)

    def acquire(self, name: str, key: Key, count: float, config: Config | None) -> Call[Taken]:
        name, key, own = self._target(name, key, config)
        arguments = [(_TEXT, name), (_TEXT, key), (_NUMBER, float(count)), _UNTHROWN, (_JSON, own)]
        select = f"{_RESULT}, r.lease, {_time('r.expires_at')}, NULL, NULL"
        fields = _of_one(name, Taken)
        return self._make(select, "rl_acquire", arguments, _read_taken, slots=frozenset((name,)), **fields)

    def extend(self, name: str, lease: str | None, config: Config | None) -> Call[datetime | None]:
        arguments = [(_TEXT, lease), (_JSON, self.config(name, config))]
        return self._make(_time("r"), "rl_extend", arguments, lambda rows: time_of(rows[0][0]))

    def release(self, name: str, lease: str | None, config: Config | None) -> Call[bool]:
        arguments = [(_TEXT, lease), (_JSON, self.config(name, config))]
        return self._make("r", "rl_release", arguments, lambda rows: bool(rows[0][0]))

    def hold(
        self,
        name: str,
        key: Key,
        count: float,
        ttl: timedelta | float,
        id: str | None,
        at_least: float | None,
        on_expiry: str,
        reserve: bool,
        config: Config | None,
    ) -> Call[Taken]:
        name, key, own = self._target(name, key, config)
        least = None if at_least is None else float(at_least)
        arguments = [(_TEXT, name), (_TEXT, key), (_NUMBER, float(count)), (_SPAN, seconds_of(ttl)), (_TEXT, id)]
        arguments += [(_NUMBER, least), (_TEXT, on_expiry), (_FLAG, reserve), _UNTHROWN, (_JSON, own)]
        select = f"{_RESULT}, r.hold, {_time('r.expires_at')}, r.held, NULL"
        return self._make(select, "rl_hold", arguments, _read_taken, **_of_one(name, Taken, held=float(count)))

    def settle(self, hold: str | None, used: float | None) -> Call[Result]:
        arguments = [(_TEXT, hold), (_NUMBER, None if used is None else float(used))]
        return self._make(_RESULT, "rl_settle", arguments, _read_result)

    def hold_all(
        self, requests: Iterable[Request], ttl: timedelta | float, id: str | None, on_expiry: str
    ) -> Call[HeldAll]:
        requests = list(requests)
        text, targets = self._requests(requests)
        slots = frozenset(
            each["name"] for each in requests if self.kind(each["name"], each.get("config")) == "concurrency"
        )

        def read(rows: Rows) -> HeldAll:
            results = [_held(_request(row), row[9]) for row in rows]
            hold, expires = next((row[10:] for row in rows if row[10] is not None), (None, None))
            return HeldAll(results[0].ok, hold, time_of(expires), results)

        select = f"{_REQUEST}, r.held, r.hold, {_time('r.expires_at')}"
        arguments = [(_JSON, text), (_SPAN, seconds_of(ttl)), (_TEXT, id), (_TEXT, on_expiry)]

        def opened(error: BaseException) -> HeldAll:
            return HeldAll(True, None, None, [_held(_unchecked(each), each[2]) for each in targets], error)

        fields = _of_several(targets) | {"opened": opened, "slots": slots}
        return self._make(select, "rl_hold_all", arguments, read, " ORDER BY r.n", **fields)

    def settle_all(self, hold: str | None, used: float | Mapping[str, float] | None) -> Call[list[SettleResult]]:
        def read(rows: Rows) -> list[SettleResult]:
            return [SettleResult(name, key, *_limit(*limit)) for name, key, *limit in rows]

        text = None if used is None else json.dumps(dict(used) if isinstance(used, Mapping) else used, allow_nan=False)
        return self._make(f"r.name, r.key, {_LIMIT}", "rl_settle_all", [(_TEXT, hold), (_JSON, text)], read)

    def define(self) -> Call[list[str]]:
        self._needs_definitions("define()")
        configs = ", ".join(f"{json.dumps(name)}: {config}" for name, config in self.configs.items())
        sql = f"SELECT r.key, @rl_define(r.key, r.value) FROM jsonb_each({_JSON}) AS r"

        def read(rows: Rows) -> list[str]:
            changed = {row[0] for row in rows if row[1]}
            return [name for name in self.names if name in changed]

        return Call(_number(sql), (f"{{{configs}}}",), read, forgets=())

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


def _unchecked(target: Target) -> RequestResult:
    return RequestResult(target[0], target[1], True)


def _held(result: RequestResult, held: float | None) -> HoldRequestResult:
    return HoldRequestResult(**vars(result), held=held)


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

    def decides(answer: AllResult | HeldAll) -> Iterable[Verdict]:
        return [_verdict(each.name, each) for each in (answer.results if answer.ok else denying(answer.results))]

    return {"names": tuple(name for name, _, _ in targets), "decides": decides}
