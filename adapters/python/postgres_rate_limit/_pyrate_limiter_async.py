"""A bucket of pyrate-limiter."""

from __future__ import annotations

from copy import copy
from math import ceil
from typing import TYPE_CHECKING, Any

from pyrate_limiter import AbstractBucket, Rate, RateItem
from pyrate_limiter.abstracts.algorithm import Decision

from postgres_rate_limit._calls import Request
from postgres_rate_limit._client_async import AsyncRateLimiter
from postgres_rate_limit._results import AllResult, Result
from postgres_rate_limit._stores import checked_name, limiter_of, stored_key

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncRateLimitBucket(AbstractBucket):
    """Each rate is a limit of its own; tokens are taken from all at once, or from none. key: buckets of one name with
    different keys count separately. Tasks of one event loop may share it, through a Limiter."""

    is_async = True

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
        limits = dict(zip(self._names, configs))
        self._limiter = limiter_of(AsyncRateLimiter[str], db, limits=limits, **options)

    def of(self, key: str) -> Self:
        """A bucket with another key."""
        bucket = copy(self)
        bucket._key = stored_key(key)
        bucket.failing_rate = bucket._last_wait = None
        return bucket

    def here(self) -> int:
        """The time in milliseconds by this process's clock, which pyrate-limiter uses."""
        now: Any = self.now()  # type: ignore[no-untyped-call]
        return int(now)

    def _put(self, item: RateItem, result: Result | AllResult) -> bool:
        if result.ok:
            return self._record(item, Decision())
        limits = result.results if isinstance(result, AllResult) else [result]
        denying = result.denied_by if isinstance(result, AllResult) else result
        rate = next(rate for rate, limit in zip(self.rates, limits) if limit is denying)
        wait = None if result.retry_after is None else ceil(result.retry_after * 1000)
        return self._record(item, Decision(rate, wait))

    async def put(self, item: RateItem) -> bool:
        if not item.weight:
            return self._record(item, Decision())
        if len(self._names) == 1:  # a call that may share its round trip
            return self._put(item, await self._limiter.limit(self._names[0], self._key, count=item.weight))
        requests: list[Request] = [{"name": name, "key": self._key, "count": item.weight} for name in self._names]
        return self._put(item, await self._limiter.limit_all(requests))

    async def leak(self, current_timestamp: int | None = None) -> int:
        """Nothing to do."""
        return 0

    async def flush(self) -> None:
        for name in self._names:
            await self._limiter.reset(name, self._key)
        self.failing_rate = self._last_wait = None

    async def count(self) -> int:
        result = await self._limiter.check(self._names[-1], self._key, count=0)
        if result.remaining is None or result.capacity is None:
            return 0
        return round(result.capacity - result.remaining)

    async def peek(self, index: int) -> RateItem | None:
        """Finds an entry of a sliding log: its time, with the name of the bucket's key."""
        value = await self._limiter.value(self._names[-1], self._key)
        state, now = value["state"] or {}, value["now"]
        times = [time for time in state.get("log", []) if time > now - self.rates[-1].interval]
        if index >= len(times):
            return None
        # By this process's clock.
        return RateItem(self._key, round(self.here() - (now - times[-1 - index])))
