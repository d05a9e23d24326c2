# Made from _limits_async.py by scripts/async_to_sync.py: change that one.
"""A storage of the package limits."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psycopg
from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from limits.errors import ConfigurationError
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool

from postgres_rate_limit import _limits as windows
from postgres_rate_limit._calls import Call, Limit
from postgres_rate_limit._client_sync import RateLimiter
from postgres_rate_limit._denials import Remembering
from postgres_rate_limit._failing import OnError
from postgres_rate_limit._limits import FIXED, KINDS, MOVING, SLIDING, STRATEGIES
from postgres_rate_limit._results import Result, SetupError, Value
from postgres_rate_limit._stores import OnUnchecked, checked_name, limiter_of, stored_key, warn_of_unchecked

T = TypeVar("T")
_EACH = "FROM jsonb_array_elements_text(CAST(CAST(${} AS text) AS jsonb)) AS name"
_CLEAR = f"SELECT @rl_reset(name, CAST($1 AS text)) {_EACH.format(2)}"
_RESET = f"SELECT CAST(sum(@rl_reset_keys(name)) AS int8) {_EACH.format(1)}"


def _check(connection: Any) -> None:
    if windows.has_news(connection):
        ConnectionPool.check_connection(connection)


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
        conninfo, given = windows.parse_uri(uri or "postgresql://")
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
                on_unchecked or warn_of_unchecked,
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
            windows.all_storages.add(self)
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

    def _limit(self, strategy: str, key: str, rate: float, expiry: int) -> Limit:
        config = {**KINDS[strategy], "rate": rate, "period": expiry * 1000, "store": self.store}
        return self._limiter._calls.of(f"{self.name}:{strategy}", stored_key(key), config)

    def _take(self, strategy: str, key: str, rate: float, expiry: int, amount: int) -> Result:
        limit = self._limit(strategy, key, rate, expiry)
        return self._run(self._limiter._calls.limit("rl_limit", limit, amount))

    def _state(self, strategy: str, key: str, rate: float, expiry: int) -> Value | None:
        """The state from which limits calculates a window; None: it can't be known now. It is remembered with a
        denial."""
        limit = self._limit(strategy, key, rate, expiry)
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
        limit, told = windows.told(key) or (windows.MAX_UNTOLD, None)
        expiry = self._expiries.get(key, told)
        if expiry is None:
            raise ValueError(
                f"key is {key!r}; allowed: one that RateLimitItem.key_for makes, or that this storage has counted"
            )
        return windows.fixed_window(self._state(FIXED, key, max(limit, 1), expiry), expiry)

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        limit, told = windows.told(key) or (windows.MAX_UNTOLD, None)
        if told != expiry:
            self._expiries[key] = expiry  # for _window: get() has no expiry
        result = self._take(FIXED, key, max(limit, 1), expiry, amount)
        if result.error is not None:
            return amount
        # A denial takes nothing, and answers a count beyond the limit.
        used = 0 if result.remaining is None or result.capacity is None else int(result.capacity - result.remaining)
        return used + (0 if result.ok else amount if told else 10**15)

    def get(self, key: str) -> int:
        return (self._window(key))[0]

    def get_expiry(self, key: str) -> float:
        return windows.here((self._window(key))[1])

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
        return amount <= limit and (self._take(MOVING, key, windows.log_rate(limit), expiry, amount)).ok

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return windows.moving_window(self._state(MOVING, key, windows.log_rate(limit), expiry), expiry)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        result = self._take(SLIDING, key, windows.counter_rate(limit), expiry, amount)
        return amount <= limit if result.error is not None else result.ok

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        limit, _ = windows.told(key) or (1, None)
        return windows.sliding_window(self._state(SLIDING, key, windows.counter_rate(limit), expiry), expiry)

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        self._clear(key, SLIDING)


def _pool_maker(
    conninfo: str, query_timeout: float, prepare: bool, options: dict[str, Any]
) -> Callable[[], ConnectionPool[Any]]:
    # Prepares nothing unless asked, for PgBouncer in transaction mode.
    connection: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0 if prepare else None}
    if "connect_timeout" not in conninfo_to_dict(conninfo) and "PGCONNECT_TIMEOUT" not in os.environ:
        connection["connect_timeout"] = 5
    # After reconnect_timeout the pool tries again at the next call, without ever longer pauses. A connection is checked
    # before use, because it may be lost: no request notices a restart.
    made: dict[str, Any] = {"open": False, "min_size": 0, "max_size": 10, "timeout": 5.0, "reconnect_timeout": 2.0}
    made |= {"check": _check, "connection_class": windows.impatient(psycopg.Connection, query_timeout)}
    made |= {**options, "kwargs": {**connection, **options.get("kwargs", {})}}
    return lambda: ConnectionPool(conninfo, **made)
