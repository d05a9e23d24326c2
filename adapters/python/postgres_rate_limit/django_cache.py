"""A Django cache that counts in PostgreSQL, by the extension ratelimit. For packages that limit requests by a cache's
add, incr and get, such as django-ratelimit: each of them is atomic, over all processes.

    CACHES = {"limits": {"BACKEND": "postgres_rate_limit.django_cache.RateLimitCache", "LOCATION": "default"}}
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
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
_MOST = 9_999_999
# The maximum in seconds, also used for no time-out: three years.
_LONGEST = 99_000_000
_FILE = files("postgres_rate_limit").joinpath("counters.sql").read_text("utf-8")
_PUT, _GET, _ = re.sub(r"^--.*\n", "", _FILE, flags=re.MULTILINE).split(";\n")
# Added, it changes no number, since it leads out of the range. Longer by this, each key has expired.
_NOTHING, _EXPIRED = _MOST + 1, -10 * _LONGEST
_DELETE = "SELECT @rl_reset(CAST($1 AS text), CAST($2 AS text))"
_CLEAR = "SELECT @rl_reset_keys(CAST($1 AS text))"


class RateLimitCache(BaseCache):  # type: ignore[misc]
    """Values are whole numbers from 0 to 9,999,999; an addition that would leave them adds nothing. Another cache keeps
    other values. The README lists the OPTIONS."""

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
        connection = ConnectionProxy(connections, using)
        self._limiter = limiter_of(RateLimiter[str], connection, on_unchecked, **options)

    def _call(
        self, sql: str, values: tuple[Any, ...], read: Callable[[Rows], T], opened: Callable[[Any], T] | None = None
    ) -> T:
        verdict = (self._name, True, None, None)
        call = Call(sql, (self._name, *values), read, lambda answer: [verdict], (self._name,), opened)
        return self._limiter._run(call, None)

    def _key(self, key: Any, version: int | None) -> str:
        made: Any = self.make_and_validate_key(key, version=version)
        return stored_key(made)

    def _begun(self, value: Any, timeout: Any) -> tuple[float, float]:
        """The number of a new key, and its seconds. 0: it has expired at once."""
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
            allowed = f"a whole number from 0 to {_MOST:,}, since this cache counts"
            raise TypeError(f"value is {value!r}; allowed: {allowed}")
        given = self.default_timeout if timeout is DEFAULT_TIMEOUT else timeout
        return float(value), float(_LONGEST if given is None else min(max(ceil(given), 0), _LONGEST))

    def add(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        number, seconds = self._begun(value, timeout)
        values = self._key(key, version), float(_NOTHING), number, seconds, 0.0
        return self._call(_PUT, values, lambda rows: bool(rows[0][1]), lambda error: True)

    def set(self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        number, seconds = self._begun(value, timeout)
        self._call(_PUT, (self._key(key, version), 1.0, number, seconds, float(_EXPIRED)), lambda rows: None)

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        def read(rows: Rows) -> int:
            if rows[0][0] is None:
                raise ValueError(f"Key '{key}' not found")
            return int(rows[0][0])

        amount = float(min(max(delta, -_NOTHING), _NOTHING))
        return self._call(_PUT, (self._key(key, version), amount, None, 0.0, 0.0), read, lambda error: delta)

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        def read(rows: Rows) -> Any:
            return default if rows[0][0] is None else rows[0][0]

        return self._call(_GET, (self._key(key, version),), read, lambda error: default)

    def delete(self, key: Any, version: int | None = None) -> bool:
        return self._call(_DELETE, (self._key(key, version),), lambda rows: bool(rows[0][0]))

    def clear(self) -> None:
        self._call(_CLEAR, (), lambda rows: None)
