"""A plugin of pytest that runs the tests of pyrate-limiter's buckets on ours, instead of on its own."""

import asyncio
from uuid import uuid4

import pytest
from conftest import Clock
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from pyrate_limiter import clocks

from postgres_rate_limit.pyrate_limiter import AsyncRateLimitBucket, RateLimitBucket

# The tests that can't pass, and why.
EXCEPT = {
    "test_bucket_02": "counts items whose time is out, of which ours needn't leak any",
    "test_bucket_03": "peeks at the names of items, of which only times are kept",
    "test_bucket_leak": "counts items whose time is out, of which ours needn't leak any",
    "test_bucket_performance": "needs 30,000 items a rate, of which a sliding log keeps 10,000",
    "test_bucket_records_retry_after": "puts items of times that are not now, but ours go by the database's clock",
    "test_factory_leak": "counts items whose time is out, of which ours needn't leak any",
}


real_sleep = asyncio.sleep


@pytest.fixture
def clock(monkeypatch):
    """The limiter's and the bucket's, which go on only where a test sleeps: these tests put 50 items within a second, and
    wait for a space to the nearest 40 ms."""

    async def sleep(seconds, result=None):
        clock.now += seconds
        await real_sleep(0)
        return result

    with Clock().set(monkeypatch) as clock:
        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(clocks, "monotonic_ns", lambda: round(clock.now * 1e9))
        yield clock


@pytest.fixture(params=["sync", "async"])
async def create_bucket(request, clock):
    options = clock.options(request.param == "async")
    if request.param == "sync":
        pool, kind = ConnectionPool(min_size=1, open=True, **options), RateLimitBucket
    else:
        pool, kind = AsyncConnectionPool(min_size=1, open=False, **options), AsyncRateLimitBucket
        await pool.open()

    async def create(rates):
        return kind(rates, pool, name=uuid4().hex)

    yield create
    closed = pool.close()
    if asyncio.iscoroutine(closed):
        await closed


def pytest_collection_modifyitems(config, items):
    ours = [item for item in items if "create_bucket" in item.fixturenames and item.originalname not in EXCEPT]
    config.hook.pytest_deselected(items=[item for item in items if item not in ours])
    items[:] = ours
