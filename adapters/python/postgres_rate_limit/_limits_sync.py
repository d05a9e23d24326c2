# Made from _limits_async.py by scripts/async_to_sync.py: change that one.
"""A storage of the package limits."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote
from weakref import WeakSet

import psycopg
from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from limits.errors import ConfigurationError
from limits.limits import GRANULARITIES
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool

from postgres_rate_limit._calls import Call, Limit
from postgres_rate_limit._client_sync import RateLimiter
from postgres_rate_limit._databases import until
from postgres_rate_limit._denials import Remembering
from postgres_rate_limit._failing import OnError
from postgres_rate_limit._results import Result, SetupError, Value, log
from postgres_rate_limit._stores import OnUnchecked, checked_name, limiter_of, stored_key
from postgres_rate_limit._waits import after_fork

T = TypeVar("T")
# The strategies have limits of their own, so that a key may be used with several of them.
FIXED, MOVING, SLIDING = STRATEGIES = "fixed-window", "moving-window", "sliding-window-counter"
KINDS = {
    FIXED: {"kind": "fixed window", "start": "first request"},
    MOVING: {"kind": "sliding log"},
    SLIDING: {"kind": "sliding window"},
}
# The maximum number of entries in a sliding log.
_MAX_LOG = 10_000
# The maximum number of hits in a window if its key doesn't show the limit: the extension compares with a tolerance of a
# billionth of it, which is then less than a hit.
_MAX_UNTOLD = 10**8
# The end of a block without one, in epoch milliseconds.
_ENDLESS = 253_402_128_000_000
_EACH = "FROM jsonb_array_elements_text(CAST(CAST(${} AS text) AS jsonb)) AS name"
_CLEAR = f"SELECT @rl_reset(name, CAST($1 AS text)) {_EACH.format(2)}"
_RESET = f"SELECT CAST(sum(@rl_reset_keys(name)) AS int8) {_EACH.format(1)}"


class RateLimitStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """Counts in PostgreSQL, for all strategies. Threads may share it. The README lists the options;
    further ones are those of its pool, which the first call opens."""

    STORAGE_SCHEME = ["postgresql+ratelimit"]

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
        on_unchecked: OnUnchecked | None = None,
        remember_denials: bool | Remembering = False,
        schema: str | None = None,
        **options: Any,
    ) -> None:
        conninfo, given = _parse_uri(uri or "postgresql://")
        self.store = given.get("store", "table") if store is None else store
        if self.store not in ("table", "memory"):
            raise ConfigurationError(f'store is {self.store!r}; allowed: "table", "memory"')
        if query_timeout is not None and not query_timeout > 0:
            raise ConfigurationError(f"query_timeout is {query_timeout!r}; allowed: seconds, more than 0")
        try:
            self.name = checked_name(given.get("name", "limits") if name is None else name)
            # Its calls have no deadline: the pool, and each of its connections, limit the waits.
            self._limiter = limiter_of(
                RateLimiter[str],
                None,
                on_unchecked or partial(log.warning, "a request went unchecked: %r"),
                on_error=on_error,
                timeout=inf,
                remember_denials=remember_denials,
                schema=schema,
            )
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        self._expiries: dict[str, int] = {}
        self._opens_pool = pool is None
        if pool is None:
            self._make_pool = _pool_maker(conninfo, 5.0 if query_timeout is None else query_timeout, prepare, options)
            self.pool = self._make_pool()
            all_storages.add(self)
        elif not isinstance(pool, ConnectionPool):
            allowed = ConnectionPool.__name__
            raise ConfigurationError(f"pool is {pool!r}; allowed: a {allowed} of psycopg_pool")
        elif conninfo != "postgresql://" or options or query_timeout is not None or prepare:
            raise ConfigurationError("pool: it has its address and options, so the storage takes none")
        else:
            self.pool = pool
        super().__init__(uri, wrap_exceptions=wrap_exceptions)

    if not TYPE_CHECKING:

        def __getattribute__(self, attribute: str) -> Any:
            # limits looks for it before it uses the strategy: the time to raise that it can't.
            if attribute == "acquire_entry" and self.store == "memory":
                raise ConfigurationError('store is "memory"; allowed with moving-window: "table"')
            return super().__getattribute__(attribute)

    @property
    def pool(self) -> ConnectionPool[Any]:
        return cast(ConnectionPool[Any], self._limiter._db)

    @pool.setter
    def pool(self, pool: ConnectionPool[Any]) -> None:
        self._limiter._db = pool

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        return psycopg.Error, SetupError

    def _run(self, call: Call[T]) -> T:
        if self._opens_pool and self.pool.closed:
            self.pool.open()
        return self._limiter._run(call, None)

    def _limit(self, strategy: str, key: str, limit: int, expiry: int) -> Limit:
        rate: float = max(limit, 1)
        if strategy == SLIDING:
            # limits rounds the use down, so a hit passes until the use and its cost reach the limit plus one.
            rate = (limit + 1) * (1 - 2e-9)  # by more than what the extension tolerates
        elif strategy == MOVING and limit > _MAX_LOG:
            raise ConfigurationError(
                f"the limit is {limit}; allowed with moving-window: at most {_MAX_LOG}, an entry a hit; "
                "use sliding-window-counter"
            )
        config = {**KINDS[strategy], "rate": rate, "period": expiry * 1000, "store": self.store}
        return self._limiter._calls.of(f"{self.name}:{strategy}", stored_key(key), config)

    def _take(self, limit: Limit, amount: int) -> Result:
        return self._run(self._limiter._calls.limit("rl_limit", limit, amount))

    def _state(self, limit: Limit) -> Value | None:
        """The state from which limits calculates a window; None: it can't be known now. It is remembered with a
        denial."""
        calls, sent = self._limiter._calls, time.monotonic()
        denial = self._limiter._denials.find(calls.limit("rl_check", limit, 1).id, inf)
        if denial and denial.read:
            known: Value = denial.read[0]
            return {**known, "now": known["now"] + (sent - denial.read[1]) * 1000}
        call: Call[Any] = calls.value(limit)
        value: Value | None = self._run(replace(call, opened=lambda error: None, decides=lambda value: ()))
        if denial and value:
            denial.read = value, sent
        return value

    def _window(self, key: str) -> tuple[int, float]:
        """The hits, and the seconds until the window ends, or a blocked key may call again."""
        limit, told = _told(key)
        expiry = self._expiries.get(key, told)
        if expiry is None:
            raise ValueError(
                f"key is {key!r}; allowed: one that RateLimitItem.key_for makes, or that this storage has counted"
            )
        value = self._state(self._limit(FIXED, key, limit, expiry))
        if value is None:
            return 0, expiry
        config, state, now, blocked = value["config"], value["state"], value["now"], value["blockedUntil"]
        left = max(0, state["ts"] + config["period"] - now) if state else 0
        hits = int(config["capacity"] - state["value"]) if state and left else 0
        if blocked is not None:
            return hits, expiry if blocked >= _ENDLESS else max(blocked - now, left) / 1000
        return hits, left / 1000 if hits else 0

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        limit, told = _told(key)
        if told != expiry:
            self._expiries[key] = expiry  # for _window: get() has no expiry
        result = self._take(self._limit(FIXED, key, limit, expiry), amount)
        if result.error is not None:
            return amount
        # A denial takes nothing, and answers a count beyond the limit.
        used = 0 if result.remaining is None or result.capacity is None else int(result.capacity - result.remaining)
        return used + (0 if result.ok else amount if told else 10**15)

    def get(self, key: str) -> int:
        return (self._window(key))[0]

    def get_expiry(self, key: str) -> float:
        return _here((self._window(key))[1])

    def check(self) -> bool:
        """Whether the database answers, and lets the role limit."""
        call = self._limiter._calls.limit("rl_check", self._limit(FIXED, "", 1, 1), 1)
        try:
            self._run(replace(call, opened=None, id=None))
        except self.base_exceptions:
            return False
        return True

    def reset(self) -> int:
        """Makes all limits of the name full again; returns the number of keys that were not."""
        names = json.dumps([f"{self.name}:{each}" for each in STRATEGIES])
        return self._run(Call(_RESET, (names,), lambda rows: int(rows[0][0]), forgets=()))

    def clear(self, key: str) -> None:
        self._clear(key, *STRATEGIES)

    def _clear(self, key: str, *strategies: str) -> None:
        names, key = [f"{self.name}:{each}" for each in strategies], stored_key(key)
        forgets = tuple((name, key) for name in names)
        self._run(Call(_CLEAR, (key, json.dumps(names)), lambda rows: None, forgets=forgets))

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        # The limit may be 0.
        return amount <= limit and (self._take(self._limit(MOVING, key, limit, expiry), amount)).ok

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        value = self._state(self._limit(MOVING, key, limit, expiry))
        state, now = (value["state"], value["now"] / 1000) if value else (None, 0)
        taken = [ms / 1000 for ms in state["log"] if ms / 1000 > now - expiry] if state else []
        return _here(taken[0] - now if taken else 0), len(taken)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        result = self._take(self._limit(SLIDING, key, limit, expiry), amount)
        return amount <= limit if result.error is not None else result.ok

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """The counts of the window before and of this one, each with the seconds until it no longer counts."""
        limit, _ = _told(key, 1)
        value = self._state(self._limit(SLIDING, key, limit, expiry))
        if value is None:
            return 0, 0.0, 0, float(expiry)
        state, now = value["state"], value["now"] / 1000
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

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        self._clear(key, SLIDING)

    def _leave_pool(self) -> None:
        _of_parents.append(self.pool)
        self.pool = self._make_pool()


def _here(seconds: float) -> float:
    """Returns the time in this number of seconds by this process's clock, with which limits and frameworks compare
    it."""
    return time.time() + seconds


def _told(key: str, unknown: int = _MAX_UNTOLD) -> tuple[int, int | None]:
    """Reads limit and expiry from the end of a key, as RateLimitItem.key_for writes them."""
    try:
        _, limit, multiples, granularity = key.rsplit("/", 3)
        return int(limit), GRANULARITIES[granularity].GRANULARITY.seconds * int(multiples)
    except (ValueError, KeyError):
        return unknown, None


def _parse_uri(uri: str) -> tuple[str, dict[str, str]]:
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


def _pool_maker(
    conninfo: str, query_timeout: float, prepare: bool, options: dict[str, Any]
) -> Callable[[], ConnectionPool[Any]]:
    class Impatient(psycopg.Connection[Any]):
        """Limits all waits for the server."""

        def wait(self, gen: Any, *arguments: Any, **others: Any) -> Any:
            return super().wait(until(time.monotonic() + query_timeout, self, gen), *arguments, **others)

    # Prepares nothing unless asked, for PgBouncer in transaction mode.
    connection: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0 if prepare else None}
    if "connect_timeout" not in conninfo_to_dict(conninfo) and "PGCONNECT_TIMEOUT" not in os.environ:
        connection["connect_timeout"] = 5
    # After reconnect_timeout the pool tries again at the next call, without ever longer pauses. A connection is checked
    # before use, because it may be lost: no request notices a restart.
    made: dict[str, Any] = {"open": False, "min_size": 0, "max_size": 10, "timeout": 5.0, "reconnect_timeout": 2.0}
    made |= {"check": _check, "connection_class": Impatient}
    made |= {**options, "kwargs": {**connection, **options.get("kwargs", {})}}
    return lambda: ConnectionPool(conninfo, **made)


def _check(connection: Any) -> None:
    """Asks the server only if it has sent something unasked, such as the end of the connection."""
    if hasattr(select, "poll"):  # not on Windows
        poll = select.poll()
        poll.register(connection.pgconn.socket, select.POLLIN)
        if not poll.poll(0):
            return
    ConnectionPool.check_connection(connection)


# A forked child has a pool of its own: on its parent's connections it would read the parent's answers. The parent's
# pool stays referenced, so that none of them is closed here.
all_storages: WeakSet[RateLimitStorage] = WeakSet()
_of_parents: list[Any] = []
after_fork(all_storages, RateLimitStorage._leave_pool)
