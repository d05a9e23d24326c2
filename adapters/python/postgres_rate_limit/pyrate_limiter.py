"""Buckets of pyrate-limiter that count in PostgreSQL, by the extension ratelimit, and so limits of fastapi-limiter.

Their options:

db: the connections, as for RateLimiter and AsyncRateLimiter: a pool, an engine, or a connection outside a transaction.
name: of the limits; buckets with the same name, key and rates count together. Default: "pyrate".
kind: "sliding log", as pyrate-limiter counts, for rates of at most 10,000, or "sliding window", "fixed window".
    Default: "sliding log".
store: "memory": in the server's shared memory; not for a sliding log. Default: "table".
on_error: "open" admits an item if the database can't answer now, or not in time. Default: "closed".
on_unchecked: called with the error of such an item. Default: a warning is logged.
timeout: seconds after which a call fails and its connection is closed. Default: 5 with "open", otherwise none.
remember_denials: a denied item is denied again without a database call, for at most a second; a dict with max and
    at_most sets the number of denials, and the maximum time in seconds. Default: False.
schema: of the functions. Default: found automatically.
"""

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
