"""Buckets of pyrate-limiter that count in PostgreSQL, by the extension ratelimit, and so limits of fastapi-limiter.

Their options:

db: the connections, as for RateLimiter and AsyncRateLimiter: a pool, an engine, or a connection outside a transaction.
name: of the limits; buckets with the same name, key and rates count together. Default: "pyrate".
kind: "sliding log", as pyrate-limiter counts, for rates of at most 10,000, or "sliding window", "fixed window".
    Default: "sliding log".
store: "memory": in the server's shared memory; not for a sliding log. Default: "table".
on_error: "open" admits an item if the database can't answer now, or not in time. Default: "closed".
on_unchecked: called with the error of such an item. Default: it is logged, as a warning.
timeout: seconds after which a call fails and its connection is closed. Default: with "open" 5, or else none.
remember_denials: a denied item is denied again without a database call, for at most a second; a dict with max and
    at_most sets the number of denials, and the maximum time in seconds. Default: False.
schema: of the functions. Default: it is found.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from math import ceil
from typing import TYPE_CHECKING, Any

from pyrate_limiter import AbstractBucket, BucketFactory, Rate, RateItem
from pyrate_limiter.abstracts.algorithm import Decision

from postgres_rate_limit._calls import Request
from postgres_rate_limit._results import AllResult, Result, Value
from postgres_rate_limit._stores import async_limiter_of, checked_name, limiter_of, stored_key

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AsyncRateLimitBucket", "KeyedBuckets", "RateLimitBucket"]


class _Bucket(AbstractBucket):
    """The shared part of both kinds. Each rate is a limit of its own; tokens are taken from all at once, or from
    none."""

    _make: Callable[..., Any]

    def __init__(
        self,
        rates: list[Rate],
        db: object,
        key: str = "",
        *,
        name: str = "pyrate",
        kind: str = "sliding log",
        store: str = "table",
        **options: Any,
    ) -> None:
        self.rates = rates
        self._key = stored_key(key)
        self._names = [f"{checked_name(name)}:{rate.limit}/{rate.interval}" for rate in self.rates]
        configs = [{"kind": kind, "store": store, "rate": rate.limit, "period": rate.interval} for rate in self.rates]
        self._limiter = self._make(db, limits=dict(zip(self._names, configs)), **options)

    def of(self, key: str) -> Self:
        """A bucket with another key."""
        bucket = copy(self)
        bucket._key = stored_key(key)
        bucket._flushed()
        return bucket

    def here(self) -> int:
        """The time in milliseconds by this process's clock, which pyrate-limiter uses."""
        now: Any = self.now()  # type: ignore[no-untyped-call]
        return int(now)

    def _requests(self, count: int) -> list[Request]:
        return [{"name": name, "key": self._key, "count": count} for name in self._names]

    def _put(self, item: RateItem, results: AllResult | None) -> bool:
        if results is None or results.ok:
            return self._record(item, Decision())
        denying = results.denied_by
        rate = next(rate for rate, limit in zip(self.rates, results) if limit is denying)
        wait = None if results.retry_after is None else ceil(results.retry_after * 1000)
        return self._record(item, Decision(rate, wait))

    def _flushed(self) -> None:
        self.failing_rate = self._last_wait = None

    @staticmethod
    def _count(result: Result) -> int:
        if result.remaining is None or result.capacity is None:
            return 0
        return round(result.capacity - result.remaining)

    def _peek(self, index: int, value: Value) -> RateItem | None:
        state, now = value["state"] or {}, value["now"]
        times = [time for time in state.get("log", []) if time > now - self.rates[-1].interval]
        if index >= len(times):
            return None
        # By this process's clock.
        return RateItem(self._key, round(self.here() - (now - times[-1 - index])))


class RateLimitBucket(_Bucket):
    """Threads may share it, through a Limiter. key: buckets of one name with different keys count separately."""

    is_async = False
    _make = staticmethod(limiter_of)

    def put(self, item: RateItem) -> bool:
        return self._put(item, self._limiter.limit_all(self._requests(item.weight)) if item.weight else None)

    def leak(self, current_timestamp: int | None = None) -> int:
        """Nothing to do."""
        return 0

    def flush(self) -> None:
        for name in self._names:
            self._limiter.reset(name, self._key)
        self._flushed()

    def count(self) -> int:
        return self._count(self._limiter.check(self._names[-1], self._key, count=0))

    def peek(self, index: int) -> RateItem | None:
        """Finds an entry of a sliding log: its time, with the name of the bucket's key."""
        return self._peek(index, self._limiter.value(self._names[-1], self._key))


class AsyncRateLimitBucket(_Bucket):
    """The same with await; db belongs to one event loop."""

    is_async = True
    _make = staticmethod(async_limiter_of)

    async def put(self, item: RateItem) -> bool:
        return self._put(item, await self._limiter.limit_all(self._requests(item.weight)) if item.weight else None)

    async def leak(self, current_timestamp: int | None = None) -> int:
        """Nothing to do."""
        return 0

    async def flush(self) -> None:
        for name in self._names:
            await self._limiter.reset(name, self._key)
        self._flushed()

    async def count(self) -> int:
        return self._count(await self._limiter.check(self._names[-1], self._key, count=0))

    async def peek(self, index: int) -> RateItem | None:
        """Finds an entry of a sliding log: its time, with the name of the bucket's key."""
        return self._peek(index, await self._limiter.value(self._names[-1], self._key))


class KeyedBuckets(BucketFactory):
    """Has a bucket like this one for each name that a limiter is asked for, such as each client of fastapi-limiter."""

    def __init__(self, bucket: RateLimitBucket | AsyncRateLimitBucket) -> None:
        self._bucket = bucket

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, self._bucket.here(), weight)

    def get(self, item: RateItem) -> AbstractBucket:
        return self._bucket.of(item.name)
