"""A Django cache that counts in PostgreSQL, by the extension ratelimit. For packages that limit requests by a cache's
add, incr and get, such as django-ratelimit: each of them is atomic, over all processes.

    CACHES = {"limits": {"BACKEND": "postgres_rate_limit.django_cache.RateLimitCache", "LOCATION": "default"}}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import ceil
from typing import Any, TypeVar

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache  # type: ignore[import-untyped]
from django.db import connections  # type: ignore[import-untyped]
from django.utils.connection import ConnectionProxy  # type: ignore[import-untyped]

from postgres_rate_limit._calls import Call, Rows
from postgres_rate_limit._client_sync import RateLimiter
from postgres_rate_limit._failing import OnError
from postgres_rate_limit._stores import OnUnchecked, checked_name, limiter_of, stored_key

__all__ = ["RateLimitCache"]

T = TypeVar("T")

# The value of a key is stored as the tokens used in a window that begins with its first call and is as long as its
# time-out: seconds * _STEP + _ZERO + value. So a call without a time-out knows it, and one token used means no value.
_ALL, _STEP, _ZERO = 10**15, 10**7, 10**6
_MOST = _STEP - _ZERO - 1
# The maximum in seconds, also used for no time-out: three years.
_LONGEST = 99_000_000

_WINDOW = {"kind": "fixed window", "start": "first request", "rate": _ALL}
# The call, and the config of the window that may exist, by the stored seconds instead of the call's.
_WITH = f"""
    WITH a AS (SELECT CAST($1 AS text) AS name, CAST($2 AS text) AS key, CAST($3 AS float8) AS amount,
                      CAST(CAST($4 AS text) AS jsonb) AS config),
    v AS MATERIALIZED (
        SELECT floor(({_ALL} - CAST(@rl_value(a.name, a.key, a.config) -> 'state' ->> 'value' AS float8)) / {_STEP})
            AS seconds
        FROM a),
    s AS MATERIALIZED (
        SELECT v.seconds, CASE WHEN v.seconds > 0 THEN a.config || jsonb_build_object('period', v.seconds * 1000)
                               ELSE a.config END AS config
        FROM a, v)"""
_PUT = """CASE WHEN (SELECT @rl_reset(a.name, a.key)) IS NOT NULL
         THEN (SELECT c.ok FROM @rl_credit(a.name, a.key, -a.amount, config => a.config) AS c) END"""
# Takes one first, which locks the key: otherwise two that set a new one would both add to it.
_SET = f"""{_WITH}
    SELECT {_PUT} FROM a CROSS JOIN LATERAL @rl_credit(a.name, a.key, -1, config => a.config) AS locked"""
# All tokens are there only if nothing is used.
_ADD = f"""{_WITH}
    SELECT CASE WHEN NOT r.ok THEN false
                WHEN s.config = a.config
                THEN (SELECT c.ok FROM @rl_credit(a.name, a.key, {_ALL} - a.amount, config => a.config) AS c)
                ELSE {_PUT} END
    FROM a CROSS JOIN s CROSS JOIN LATERAL @rl_limit(a.name, a.key, {_ALL}, config => s.config) AS r"""
# Takes the amount, and returns it if there was no value, or if the value would be too large or too small.
_INCR = f"""{_WITH}
    SELECT CASE WHEN r.used < {_STEP} THEN (SELECT CASE WHEN @rl_reset(a.name, a.key) IS NULL THEN 1 ELSE 0 END)
                WHEN floor(r.used / {_STEP}) <> s.seconds
                THEN (SELECT c.capacity - c.remaining FROM @rl_credit(a.name, a.key, a.amount, config => s.config) AS c)
                ELSE r.used END
    FROM a CROSS JOIN s CROSS JOIN LATERAL (
        SELECT c.capacity - c.remaining AS used FROM @rl_credit(a.name, a.key, -a.amount, config => s.config) AS c
    ) AS r
    WHERE s.seconds > 0"""
_GET = "SELECT CAST(@rl_value(CAST($1 AS text), CAST($2 AS text), CAST(CAST($3 AS text) AS jsonb)) AS text)"
_DELETE = "SELECT @rl_reset(CAST($1 AS text), CAST($2 AS text))"
_CLEAR = "SELECT @rl_reset_keys(CAST($1 AS text))"


def _value(used: float) -> int | None:
    return None if used < _STEP else int(used) % _STEP - _ZERO


def _config(seconds: float) -> str:
    return json.dumps({**_WINDOW, "period": seconds * 1000})


class RateLimitCache(BaseCache):  # type: ignore[misc]
    """Values are whole numbers from -1,000,000 to 8,999,999, and stop there; another cache keeps the rest.

    LOCATION: the alias in DATABASES of the connection that counts. Default: "default". With ATOMIC_REQUESTS the calls
        are in the request's transaction, and the counts of a request that fails are lost: name an alias without it.
    TIMEOUT, KEY_PREFIX, VERSION, KEY_FUNCTION: as in every cache.
    In OPTIONS:
    name: of the limits that keep the numbers; caches of the same name share them. Default: "cache".
    on_error: "open": if the database can't answer now, or not in time, a key is new to add, incr and get. Default:
        "closed".
    on_unchecked: called with the error of such a call. Default: a warning is logged.
    timeout: seconds after which one of these calls fails and its connection is closed. Default: 5 with "open".
    schema: of the functions. Default: found automatically.
    """

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        self._make(location or "default", **params.get("OPTIONS", {}))

    def _make(
        self,
        using: str,
        name: str = "cache",
        on_error: OnError = "closed",
        on_unchecked: OnUnchecked | None = None,
        timeout: float | None = None,
        schema: str | None = None,
    ) -> None:
        self._name = checked_name(name)
        options: dict[str, Any] = {"on_error": on_error, "timeout": timeout, "schema": schema}
        self._limiter: RateLimiter = limiter_of(ConnectionProxy(connections, using), on_unchecked, **options)

    def _call(
        self, sql: str, values: tuple[Any, ...], read: Callable[[Rows], T], opened: Callable[[], T] | None = None
    ) -> T:
        opens = None if opened is None else lambda error: opened()
        verdict = (self._name, True, None, None)
        call = Call(sql, (self._name, *values), read, lambda answer: [verdict], (self._name,), opens)
        return self._limiter._run(call, None)

    def _key(self, key: Any, version: int | None) -> str:
        made: Any = self.make_and_validate_key(key, version=version)
        return stored_key(made)

    def _seconds(self, timeout: Any) -> int:
        """0: the value has expired at once."""
        given = self.default_timeout if timeout is DEFAULT_TIMEOUT else timeout
        return _LONGEST if given is None else min(max(ceil(given), 0), _LONGEST)

    @staticmethod
    def _used(value: Any, seconds: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not -_ZERO <= value <= _MOST:
            allowed = f"a whole number from {-_ZERO:,} to {_MOST:,}, since this cache counts"
            raise TypeError(f"value is {value!r}; allowed: {allowed}")
        return seconds * _STEP + _ZERO + value

    def add(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        seconds, stored = self._seconds(timeout), self._key(key, version)
        used = self._used(value, seconds)
        if seconds == 0:
            return self.get(key, version=version) is None
        return self._call(_ADD, (stored, float(used), _config(seconds)), lambda rows: bool(rows[0][0]), lambda: True)

    def set(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        seconds, stored = self._seconds(timeout), self._key(key, version)
        used = self._used(value, seconds)
        if seconds == 0:
            self.delete(key, version)
            return
        self._call(_SET, (stored, float(used), _config(seconds)), lambda rows: None)

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        def read(rows: Rows) -> int:
            value = _value(rows[0][0]) if rows else None
            if value is None:
                raise ValueError(f"Key '{key}' not found")
            return value

        stored = self._key(key, version)
        return self._call(_INCR, (stored, float(delta), _config(1)), read, lambda: delta)

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        def read(rows: Rows) -> Any:
            found = json.loads(rows[0][0])
            state = found["state"] or {"value": _ALL, "ts": 0}
            used = _ALL - state["value"]
            value = _value(used) if state["ts"] + used // _STEP * 1000 > found["now"] else None
            return default if value is None else value

        return self._call(_GET, (self._key(key, version), _config(1)), read, lambda: default)

    def delete(self, key: Any, version: int | None = None) -> bool:
        return self._call(_DELETE, (self._key(key, version),), lambda rows: bool(rows[0][0]))

    def clear(self) -> None:
        self._call(_CLEAR, (), lambda rows: None)
