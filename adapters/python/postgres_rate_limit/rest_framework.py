"""Throttles of Django REST framework that count in PostgreSQL, by the extension ratelimit: exactly, and with the exact
time that a denied request has to wait.

The setting POSTGRES_RATE_LIMIT has their options, which the README lists; a class's attribute options has those that
differ for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from django.conf import settings  # type: ignore[import-untyped]
from django.core.signals import setting_changed  # type: ignore[import-untyped]
from django.db import connections  # type: ignore[import-untyped]
from django.utils.connection import ConnectionProxy  # type: ignore[import-untyped]
from rest_framework import throttling  # type: ignore[import-untyped]

from postgres_rate_limit._client_sync import RateLimiter
from postgres_rate_limit._results import Result
from postgres_rate_limit._stores import checked_name, limiter_of, stored_key

__all__ = ["AnonRateThrottle", "RateLimitThrottle", "ScopedRateThrottle", "UserRateThrottle"]


class _Made(NamedTuple):
    limiter: RateLimiter
    name: str
    config: dict[str, Any]


# By the class, because a throttle is made for each request.
_made: dict[type, _Made] = {}


def _changed(*, setting: str, **others: Any) -> None:
    if setting == "POSTGRES_RATE_LIMIT":
        _made.clear()


setting_changed.connect(_changed)


def _make(
    using: str = "default",
    name: str = "rest_framework",
    kind: str = "sliding log",
    store: str = "table",
    **options: Any,
) -> _Made:
    config = {"kind": kind, "store": store}
    if kind == "fixed window":
        config["start"] = "first request"
    limiter = limiter_of(RateLimiter[str], ConnectionProxy(connections, using), **options)
    return _Made(limiter, checked_name(name), config)


class RateLimitThrottle(throttling.SimpleRateThrottle):  # type: ignore[misc]
    """The base of those below, and of one with its own get_cache_key, like SimpleRateThrottle."""

    num_requests: Any
    duration: Any
    options: ClassVar[Mapping[str, Any]] = {}
    result: Result | None = None

    def allow_request(self, request: Any, view: Any) -> bool:
        if self.rate is None:
            return True
        self.key = self.get_cache_key(request, view)
        if self.key is None:
            return True
        if self.num_requests < 1:
            return False
        made = _made.get(type(self))
        if made is None:
            made = _made[type(self)] = _make(**{**getattr(settings, "POSTGRES_RATE_LIMIT", {}), **self.options})
        config = {**made.config, "rate": self.num_requests, "period": self.duration * 1000}
        # Throttles of one scope may have several rates, each of which is a limit.
        key = stored_key(f"{self.key}/{self.num_requests}/{self.duration}")
        self.result = made.limiter.limit(made.name, key, config=config)
        return self.result.ok

    def wait(self) -> float | None:
        return None if self.result is None else self.result.retry_after


class AnonRateThrottle(throttling.AnonRateThrottle, RateLimitThrottle):  # type: ignore[misc]
    """The framework's, counted in PostgreSQL."""


class UserRateThrottle(throttling.UserRateThrottle, RateLimitThrottle):  # type: ignore[misc]
    """The framework's, counted in PostgreSQL."""


class ScopedRateThrottle(throttling.ScopedRateThrottle, RateLimitThrottle):  # type: ignore[misc]
    """The framework's, counted in PostgreSQL."""
