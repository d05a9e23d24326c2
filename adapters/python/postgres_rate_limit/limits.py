"""Counts the limits of the package limits in PostgreSQL, by the extension ratelimit.

Importing it registers the schemes postgresql+ratelimit and async+postgresql+ratelimit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Union
from urllib.parse import unquote
from weakref import WeakSet

import limits.aio.storage as aio
import psycopg
from limits.errors import ConfigurationError
from limits.limits import GRANULARITIES
from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow, tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from postgres_rate_limit._databases import address_of, until
from postgres_rate_limit._denials import Denials, Remembering
from postgres_rate_limit._failing import OnError, Question, checked, not_now
from postgres_rate_limit._steps import drive, drive_async
from postgres_rate_limit._stores import stored_key

__all__ = ["AsyncRateLimitStorage", "RateLimitStorage"]

# The strategies have limits of their own, so that a key may be used with several of them.
_FIXED, _MOVING, _SLIDING = _STRATEGIES = "fixed-window", "moving-window", "sliding-window-counter"
# The maximum number of entries in a sliding log.
_MAX_LOG = 10_000
# The maximum number of hits in a window if its key doesn't show the limit: the extension compares with a tolerance of a
# billionth of it, which is then less than a hit.
_MAX_UNTOLD = 10**8

# The limiter's clock in epoch seconds: set by a test (a time, or milliseconds), or the server's.
_CLOCK = "current_setting('ratelimit.clock', true)"
_NOW = f"""
    CASE WHEN coalesce({_CLOCK}, '') = '' THEN extract(epoch FROM clock_timestamp())::float8
         WHEN {_CLOCK} ~ '^[-+.0-9eE]+$' THEN {_CLOCK}::float8 / 1000
         ELSE extract(epoch FROM {_CLOCK}::timestamptz)::float8 END"""
_TAKE = """
    SELECT ok, retry_after, capacity - remaining
    FROM rl_limit(%(name)s, %(key)s, %(amount)s, config => %(config)s::jsonb)"""
# And the seconds until the window ends, or a blocked key may call again. A span, because the application's clock may
# show another time.
_GET = f"""
    SELECT capacity - remaining,
           CASE WHEN NOT ok THEN coalesce(retry_after, (%(config)s::jsonb ->> 'period')::float8 / 1000)
                WHEN remaining < capacity THEN extract(epoch FROM reset_at)::float8 - {_NOW}
                ELSE 0 END
    FROM rl_check(%(name)s, %(key)s, config => %(config)s::jsonb)"""
_READ = """
    SELECT value -> 'state', (value ->> 'now')::float8 / 1000
    FROM rl_value(%(name)s, %(key)s, %(config)s::jsonb) AS value"""
_CLEAR = "SELECT rl_reset(%(name)s, %(key)s)"
_CLEAR_ALL = "SELECT rl_reset(name, %(key)s) FROM unnest(%(names)s::text[]) AS name"
_RESET = "SELECT sum(rl_reset_keys(name))::int8 FROM unnest(%(names)s::text[]) AS name"


_KINDS = {
    _FIXED: {"kind": "fixed window", "start": "first request"},
    _MOVING: {"kind": "sliding log"},
    _SLIDING: {"kind": "sliding window"},
}


def _impatient(connection_class: type[Any], timeout: float) -> type[Any]:
    """Connections, of either kind, with a limit to all waits for the server."""

    class Impatient(connection_class):  # type: ignore[misc]
        def wait(self, steps: Any, *arguments: Any, **others: Any) -> Any:
            return super().wait(until(time.monotonic() + timeout, self, steps), *arguments, **others)

    return Impatient


def _has_news(connection: Any) -> bool:
    """Returns whether the server has sent something unasked, such as the end of the connection. Sends nothing."""
    if not hasattr(select, "poll"):
        return True  # not on Windows
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def _check(connection: Any) -> None:
    if _has_news(connection):
        ConnectionPool.check_connection(connection)


async def _check_async(connection: Any) -> None:
    if _has_news(connection):
        await AsyncConnectionPool.check_connection(connection)


def _is_ok(row: TupleRow) -> bool:
    return bool(row[0])


def _log_rate(limit: int) -> int:
    if limit > _MAX_LOG:
        raise ConfigurationError(
            f"the limit is {limit}; allowed with moving-window: at most {_MAX_LOG}, an entry a hit; "
            "use sliding-window-counter"
        )
    return max(limit, 1)


def _counter_rate(limit: int) -> float:
    """limits rounds the use down, so a hit passes until the use and its cost reach the limit plus one."""
    return (limit + 1) * (1 - 2e-9)  # by more than what the extension tolerates


def _here(seconds: float) -> float:
    """Returns the time in this number of seconds by this process's clock, with which limits and frameworks compare
    it."""
    return time.time() + seconds


def _moving_window(state: dict[str, Any] | None, now: float, expiry: int) -> tuple[float, int]:
    taken = [ms / 1000 for ms in state["log"] if ms / 1000 > now - expiry] if state else []
    return _here(taken[0] - now if taken else 0), len(taken)


def _sliding_window(state: dict[str, Any] | None, now: float, expiry: int) -> tuple[int, float, int, float]:
    """The counts of the window before and of this one, each with the seconds until it no longer counts."""
    begin, previous, current = now // expiry * expiry, 0, 0
    if state:
        passed = round((begin - state["ts"] / 1000) / expiry)
        if passed <= 0:
            begin, previous, current = state["ts"] / 1000, int(state["prior"]), int(state["value"])
        elif passed == 1:
            previous = int(state["value"])
    left = min(begin + expiry - now, expiry)
    # With two whole windows limits would count none left.
    return previous, left if previous else 0.0, current, min(left, expiry - 1e-6) + expiry


def _told(key: str) -> tuple[int, int] | None:
    """Reads limit and expiry from the end of a key, as RateLimitItem.key_for writes them."""
    try:
        _, limit, multiples, granularity = key.rsplit("/", 3)
        return int(limit), GRANULARITIES[granularity].GRANULARITY.seconds * int(multiples)
    except (ValueError, KeyError):
        return None


def _parse(uri: str) -> tuple[str, dict[str, str]]:
    """The address for libpq, and our options."""
    address, _, query = uri.partition("?")
    options, theirs = {}, []
    for field in filter(None, query.split("&")):
        option, _, value = field.partition("=")
        if option in ("name", "store"):
            options[option] = unquote(value)
        else:
            theirs.append(field)
    conninfo = "postgresql:" + address.partition(":")[2] + "?" * bool(theirs) + "&".join(theirs)
    try:
        conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(f"the address of the database can't be read: {error}") from error
    return conninfo, options


T = TypeVar("T")
log = logging.getLogger("postgres_rate_limit")


@dataclass(frozen=True)
class _Call(Generic[T]):
    """A statement, and the meaning of its row."""

    sql: str
    values: dict[str, Any]
    read: Callable[[TupleRow], T]
    opened: T | None = None
    """The answer if the database can't give one now; None: an error."""
    id: tuple[str, str] | None = None
    """The id under which a denial of this key is remembered; None: it isn't."""


class _Query(NamedTuple):
    call: _Call[Any]


class _Ask(NamedTuple):
    question: Question


_Steps = Generator[Union[_Query, _Ask], Any, T]


@dataclass
class _Denied:
    """A denial: its config, its row, and the rows that were read since, each with the time."""

    config: str
    row: TupleRow
    read: dict[str, tuple[TupleRow, float]]


# The row of each statement some seconds later.
_AGED: dict[str, Callable[[TupleRow, float], TupleRow]] = {
    _GET: lambda row, seconds: (row[0], row[1] - seconds),
    _READ: lambda row, seconds: (row[0], row[1] + seconds),
}


# A forked child has a pool of its own: on its parent's connections it would read the parent's answers. The parent's
# pool stays referenced, so that none of them is closed here.
_all: WeakSet[_Shared] = WeakSet()
_of_parents: list[Any] = []


def _leave_pools() -> None:
    for each in list(_all):
        _of_parents.append(each.pool)
        each.pool = each._make_pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_pools)


class _Shared:
    """The shared part of both storages."""

    pool: Any
    name: str
    store: str
    _expiries: dict[str, int]
    _make_pool: Callable[[], Any]

    def _configure(
        self,
        uri: str | None,
        name: str | None,
        store: str | None,
        pool: Any,
        query_timeout: float | None,
        prepare: bool,
        on_error: OnError,
        on_unchecked: Callable[[BaseException], object] | None,
        remember_denials: bool | Remembering,
        kinds: tuple[Any, Any, Any],
        options: Any,
    ) -> Any:
        """KINDS of pool, connection and check."""
        try:
            self._opens = checked(on_error) == "open"
            self._denials: Denials[_Denied] = Denials(remember_denials)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        self._on_unchecked = on_unchecked or (lambda error: log.warning("a request went unchecked: %r", error))
        pool_class, connection_class, check = kinds
        conninfo, given = _parse(uri or "postgresql://")
        self.name = given.get("name", "limits") if name is None else name
        self.store = given.get("store", "table") if store is None else store
        self._expiries = {}
        if not 1 <= len(self.name.encode()) <= 150:
            raise ConfigurationError(f"name is {self.name!r}; allowed: 1 to 150 bytes")
        if self.store not in ("table", "memory"):
            raise ConfigurationError(f'store is {self.store!r}; allowed: "table", "memory"')
        if query_timeout is not None and not query_timeout > 0:
            raise ConfigurationError(f"query_timeout is {query_timeout!r}; allowed: seconds, more than 0")
        if pool is None:
            # Prepares nothing unless asked, for PgBouncer in transaction mode.
            connection = {"autocommit": True, "prepare_threshold": 0 if prepare else None}
            if "connect_timeout" not in conninfo_to_dict(conninfo) and "PGCONNECT_TIMEOUT" not in os.environ:
                connection["connect_timeout"] = 5
            # After reconnect_timeout the pool tries again at the next call, without ever longer pauses. A connection is
            # checked before use, because it may be lost: no request notices a restart.
            defaults = {"min_size": 0, "max_size": 10, "timeout": 5.0, "reconnect_timeout": 2.0, "check": check}
            defaults["connection_class"] = _impatient(connection_class, 5.0 if query_timeout is None else query_timeout)
            kwargs = {**connection, **options.pop("kwargs", {})}
            self._make_pool = lambda: pool_class(conninfo, **{"open": False, "kwargs": kwargs, **defaults, **options})
            _all.add(self)
            return self._make_pool()
        if not isinstance(pool, pool_class):
            raise ConfigurationError(f"pool is {pool!r}; allowed: a {pool_class.__name__} of psycopg_pool")
        if conninfo != "postgresql://" or options or query_timeout is not None or prepare:
            raise ConfigurationError("pool: it has its address and options, so the storage takes none")
        return pool

    if not TYPE_CHECKING:

        def __getattribute__(self, attribute: str) -> Any:
            # limits looks for it before it uses the strategy: the time to raise that it can't.
            if attribute == "acquire_entry" and self.store == "memory":
                raise ConfigurationError('store is "memory"; allowed with moving-window: "table"')
            return super().__getattribute__(attribute)

    @property
    def base_exceptions(self) -> type[Exception]:
        return psycopg.Error

    def _steps(self, call: _Call[T]) -> _Steps[T]:
        sent = time.monotonic()
        denial = self._denials.find(call.id, call.values.get("amount", float("inf")))
        if denial and call.sql == _TAKE and denial.answer.config == call.values["config"]:
            return call.read(denial.answer.row)
        if denial and call.sql in denial.answer.read:
            row, at = denial.answer.read[call.sql]
            return call.read(_AGED[call.sql](row, sent - at))
        try:
            row = yield _Query(call)
        except Exception as error:
            if not self._opens or call.opened is None:
                raise
            verdict = not_now(error, lambda: address_of(self.pool))
            if not (verdict if isinstance(verdict, bool) else (yield _Ask(verdict))):
                raise
            if call.sql == _TAKE:
                self._unchecked(error)
            return call.opened
        finally:
            if call.sql in (_CLEAR, _CLEAR_ALL, _RESET):
                self._denials.forget(None if call.sql == _RESET else call.values["key"])
        if denial and call.sql in _AGED:
            denial.answer.read[call.sql] = row, sent
        if call.sql == _TAKE and not row[0]:
            denied = _Denied(call.values["config"], row, {})
            self._denials.add(call.id, call.values["amount"], sent, row[1], denied)
        return call.read(row)

    def _unchecked(self, error: BaseException) -> None:
        try:
            self._on_unchecked(error)
        except Exception:
            log.exception("on_unchecked failed")

    def _call(
        self,
        sql: str,
        read: Callable[[TupleRow], T],
        strategy: str,
        key: str = "",
        rate: float = 1,
        expiry: int = 1,
        amount: int = 1,
        opened: T | None = None,
        remembered: bool = True,
    ) -> _Call[T]:
        config = json.dumps({**_KINDS[strategy], "rate": rate, "period": expiry * 1000, "store": self.store})
        values: dict[str, Any] = {"name": f"{self.name}:{strategy}", "key": stored_key(key), "config": config}
        values["names"] = [f"{self.name}:{each}" for each in _STRATEGIES]
        if sql == _TAKE:
            values["amount"] = amount
        return _Call(sql, values, read, opened, (values["key"], strategy) if remembered else None)

    # The calls of both storages.

    def _incr(self, key: str, expiry: int, amount: int) -> _Call[int]:
        limit, told = _told(key) or (_MAX_UNTOLD, None)
        if told != expiry:
            self._expiries[key] = expiry  # for _window: get() has no expiry
        # A denial takes nothing, and answers a count beyond the limit.
        denied = amount if told else 10**15
        read = lambda row: int(row[2] + (0 if row[0] else denied))  # noqa: E731
        return self._call(_TAKE, read, _FIXED, key, max(limit, 1), expiry, amount, opened=amount)

    def _get(self, key: str) -> _Call[int]:
        return self._call(_GET, lambda row: int(row[0]), _FIXED, key, **self._window(key), opened=0)

    def _get_expiry(self, key: str) -> _Call[float]:
        window = self._window(key)
        opened = _here(window["expiry"])
        return self._call(_GET, lambda row: _here(float(row[1])), _FIXED, key, **window, opened=opened)

    def _check(self) -> _Call[bool]:
        return self._call(_GET, lambda row: True, _FIXED, remembered=False)

    def _reset(self) -> _Call[int]:
        return self._call(_RESET, lambda row: int(row[0]), _FIXED)

    def _clear(self, key: str) -> _Call[None]:
        return self._call(_CLEAR_ALL, lambda row: None, _FIXED, key)

    def _take_moving(self, key: str, limit: int, expiry: int, amount: int) -> _Call[bool]:
        return self._call(_TAKE, _is_ok, _MOVING, key, _log_rate(limit), expiry, amount, opened=True)

    def _get_moving(self, key: str, limit: int, expiry: int) -> _Call[tuple[float, int]]:
        read = lambda row: _moving_window(row[0], row[1], expiry)  # noqa: E731
        return self._call(_READ, read, _MOVING, key, _log_rate(limit), expiry, opened=(_here(0), 0))

    def _take_sliding(self, key: str, limit: int, expiry: int, amount: int) -> _Call[bool]:
        rate = _counter_rate(limit)
        return self._call(_TAKE, _is_ok, _SLIDING, key, rate, expiry, amount, opened=amount <= limit)

    def _get_sliding(self, key: str, expiry: int) -> _Call[tuple[int, float, int, float]]:
        read = lambda row: _sliding_window(row[0], row[1], expiry)  # noqa: E731
        return self._call(_READ, read, _SLIDING, key, expiry=expiry, opened=(0, 0.0, 0, float(expiry)))

    def _clear_sliding(self, key: str) -> _Call[None]:
        return self._call(_CLEAR, lambda row: None, _SLIDING, key)

    def _window(self, key: str) -> dict[str, Any]:
        limit, told = _told(key) or (_MAX_UNTOLD, None)
        expiry = self._expiries.get(key, told)
        if expiry is None:
            raise ValueError(
                f"key is {key!r}; allowed: one that RateLimitItem.key_for makes, or that this storage has counted"
            )
        return {"rate": max(limit, 1), "expiry": expiry}


class RateLimitStorage(_Shared, Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """Counts in PostgreSQL, for all strategies; threads may share it.

    name: of the limits; storages with the same name count together. Default: "limits".
    store: "memory": in the server's shared memory, lost when it restarts; not for moving-window. Default: "table".
    pool: the connections; default: a ConnectionPool of its own, opened by the first call. For that:
    query_timeout: the seconds after which a statement without an answer is an error. Default: 5.
    prepare: prepares the statements, which is faster; not for PgBouncer with max_prepared_statements = 0.
    on_error: "open" admits a request if the database can't answer it now, or not in time. Default: "closed".
    on_unchecked: called with the error of such a hit. Default: it is logged, as a warning.
    remember_denials: a denied hit is denied again without a database call, for at most a second and no longer than the
        limit does; a dict with max and at_most sets the number of denials, and the maximum time in seconds. Default:
        False.
    options: of the pool, such as max_size (10) and timeout (5 seconds), in which a call has a connection.
    """

    STORAGE_SCHEME = ["postgresql+ratelimit"]
    pool: ConnectionPool[Any]

    def __init__(
        self,
        uri: str | None = None,
        wrap_exceptions: bool = False,
        *,
        name: str | None = None,
        store: str | None = None,
        pool: ConnectionPool[Any] | None = None,
        query_timeout: float | None = None,
        prepare: bool = False,
        on_error: OnError = "closed",
        on_unchecked: Callable[[BaseException], object] | None = None,
        remember_denials: bool | Remembering = False,
        **options: Any,
    ) -> None:
        failing = on_error, on_unchecked, remember_denials
        kinds = ConnectionPool, psycopg.Connection, _check
        self.pool = self._configure(uri, name, store, pool, query_timeout, prepare, *failing, kinds, options)
        self._opens_pool = pool is None
        super().__init__(uri, wrap_exceptions=wrap_exceptions)

    def _do(self, call: _Call[T]) -> T:
        def make(step: _Query | _Ask) -> Any:
            return self._row(step.call) if isinstance(step, _Query) else step.question(None)

        return drive(self._steps(call), make)

    def _row(self, call: _Call[Any]) -> TupleRow:
        if self._opens_pool and self.pool.closed:
            self.pool.open()
        with self.pool.connection() as connection, connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(call.sql, call.values)
            row: TupleRow = cursor.fetchall()[0]
            return row

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        return self._do(self._incr(key, expiry, amount))

    def get(self, key: str) -> int:
        return self._do(self._get(key))

    def get_expiry(self, key: str) -> float:
        return self._do(self._get_expiry(key))

    def check(self) -> bool:
        """Whether the database answers, and lets the role limit."""
        try:
            return self._do(self._check())
        except psycopg.Error:
            return False

    def reset(self) -> int:
        """Makes all limits of the name full again; returns the number of keys that were not."""
        return self._do(self._reset())

    def clear(self, key: str) -> None:
        self._do(self._clear(key))

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        # The limit may be 0.
        return amount <= limit and self._do(self._take_moving(key, limit, expiry, amount))

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return self._do(self._get_moving(key, limit, expiry))

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return self._do(self._take_sliding(key, limit, expiry, amount))

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        return self._do(self._get_sliding(key, expiry))

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        self._do(self._clear_sliding(key))


class AsyncRateLimitStorage(_Shared, aio.Storage, aio.MovingWindowSupport, aio.SlidingWindowCounterSupport):
    """The same for limits.aio; pool is an AsyncConnectionPool, and belongs to one event loop."""

    STORAGE_SCHEME = ["async+postgresql+ratelimit"]
    pool: AsyncConnectionPool[Any]

    def __init__(
        self,
        uri: str | None = None,
        wrap_exceptions: bool = False,
        *,
        name: str | None = None,
        store: str | None = None,
        pool: AsyncConnectionPool[Any] | None = None,
        query_timeout: float | None = None,
        prepare: bool = False,
        on_error: OnError = "closed",
        on_unchecked: Callable[[BaseException], object] | None = None,
        remember_denials: bool | Remembering = False,
        **options: Any,
    ) -> None:
        failing = on_error, on_unchecked, remember_denials
        kinds = AsyncConnectionPool, psycopg.AsyncConnection, _check_async
        self.pool = self._configure(uri, name, store, pool, query_timeout, prepare, *failing, kinds, options)
        self._opens_pool = pool is None
        super().__init__(uri, wrap_exceptions=wrap_exceptions)

    async def _do(self, call: _Call[T]) -> T:
        async def make(step: _Query | _Ask) -> Any:
            return await (self._row(step.call) if isinstance(step, _Query) else asyncio.to_thread(step.question, None))

        return await drive_async(self._steps(call), make)

    async def _row(self, call: _Call[Any]) -> TupleRow:
        if self._opens_pool and self.pool.closed:
            await self.pool.open()
        async with self.pool.connection() as connection, connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(call.sql, call.values)
            row: TupleRow = (await cursor.fetchall())[0]
            return row

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        return await self._do(self._incr(key, expiry, amount))

    async def get(self, key: str) -> int:
        return await self._do(self._get(key))

    async def get_expiry(self, key: str) -> float:
        return await self._do(self._get_expiry(key))

    async def check(self) -> bool:
        """Whether the database answers, and lets the role limit."""
        try:
            return await self._do(self._check())
        except psycopg.Error:
            return False

    async def reset(self) -> int:
        """Makes all limits of the name full again; returns the number of keys that were not."""
        return await self._do(self._reset())

    async def clear(self, key: str) -> None:
        await self._do(self._clear(key))

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        # The limit may be 0.
        return amount <= limit and await self._do(self._take_moving(key, limit, expiry, amount))

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return await self._do(self._get_moving(key, limit, expiry))

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return await self._do(self._take_sliding(key, limit, expiry, amount))

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        return await self._do(self._get_sliding(key, expiry))

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        await self._do(self._clear_sliding(key))
