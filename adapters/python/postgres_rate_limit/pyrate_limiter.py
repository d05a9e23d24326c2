"""Buckets of pyrate-limiter that count in PostgreSQL, by the extension ratelimit, and so limits of fastapi-limiter. The
README lists their options."""

from __future__ import annotations

from pyrate_limiter import AbstractBucket, BucketFactory, RateItem

from postgres_rate_limit._pyrate_limiter_async import AsyncRateLimitBucket
from postgres_rate_limit._pyrate_limiter_sync import RateLimitBucket

__all__ = ["AsyncRateLimitBucket", "KeyedBuckets", "RateLimitBucket"]


class KeyedBuckets(BucketFactory):
    """Has a bucket like this one for each name that a limiter is asked for, such as each client of fastapi-limiter."""

    def __init__(self, bucket: RateLimitBucket | AsyncRateLimitBucket) -> None:
        self._bucket = bucket

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, self._bucket.here(), weight)

    def get(self, item: RateItem) -> AbstractBucket:
        return self._bucket.of(item.name)
