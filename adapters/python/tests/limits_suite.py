"""A plugin of pytest that runs the tests of limits itself on our storages, instead of on those that they name."""

import asyncio
import time
from uuid import uuid4

import pytest
from conftest import STORES, Clock
from limits.storage.base import TimestampedSlidingWindow

from postgres_rate_limit._limits_async import all_storages as ALL
from postgres_rate_limit.limits import AsyncRateLimitStorage, RateLimitStorage

# The tests that can't pass, and why.
EXCEPT = {
    "test_moving_window_huge_cost": "takes 1,000,000 in a moving window, which has 10,000 entries at most",
}
# So the tests know that windows begin at multiples of their length, as ours do.
for storage in (RateLimitStorage, AsyncRateLimitStorage):
    storage.__bases__ += (TimestampedSlidingWindow,)


class Still(Clock):
    """They go on only where a test sleeps: these tests leave a call 10 to 100 ms, which a busy machine exceeds. And at
    the end of a minute limits rounds down what the minute before weighs, in its own storages too: of hits before and
    after it 6 of 5 pass."""

    def sleep(self, seconds):
        self.now += max(seconds, 0)

    async def sleep_async(self, seconds, result=None):
        self.sleep(seconds)
        await real_sleep(0)
        return result


real_time, real_sleep = time.time, asyncio.sleep
clock = Still()
STRATEGY, CONCURRENCY = "test_strategy.py", "test_concurrency.py"


@pytest.fixture(autouse=True)
def still(request, monkeypatch):
    with clock.set(monkeypatch):
        if request.path.name == STRATEGY:
            monkeypatch.setattr(time, "sleep", clock.sleep)
            monkeypatch.setattr(asyncio, "sleep", clock.sleep_async)
        elif request.path.name != CONCURRENCY:
            monkeypatch.setattr(time, "time", real_time)
        yield


@pytest.fixture(autouse=True)
async def closed(request):
    """Closes the pools in the loop of a test, which leaves them open. Until Python 3.12 wait_for may miss that a task
    is cancelled, so one that still connects at the end of the loop would be waited for, for ever."""
    yield
    for storage in list(ALL):
        await storage.pool.close()
    # As a pool's own tasks may miss it.
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1)


@pytest.fixture(autouse=True)
def nothing_counted(still, args):
    """For a test that is repeated, too."""
    storage = RateLimitStorage(name=args["name"], store=args["store"])
    storage.reset()
    storage.pool.close()


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    """Puts ours in the place of the storages that a test has as parameters."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        names, storages = mark.args
        if not names.endswith(", fixture"):
            continue
        uri, storage = "postgresql+ratelimit://", RateLimitStorage
        if next(iter(storages)).values[0].startswith("async+"):
            uri, storage = f"async+{uri}", AsyncRateLimitStorage
        is_still = metafunc.definition.path.name in (STRATEGY, CONCURRENCY)
        own = clock.options(storage is AsyncRateLimitStorage) if is_still else {}
        test, ours = metafunc.definition.name, []
        for store in STORES:
            if store == "table" or not ("moving" in test or "acquire_entry" in test):
                args = {"name": uuid4().hex, "store": store, "max_size": 4, **own}
                values = {"uri": uri, "args": args, "expected_instance": storage, "fixture": None}
                ours.append(pytest.param(*(values[name] for name in names.split(", ")), id=store))
        object.__setattr__(mark, "args", (names, ours))


def pytest_collection_modifyitems(config, items):
    """Leaves out what concerns other storages, or none."""
    ours = [item for item in items if "fixture" in item.fixturenames and item.originalname not in EXCEPT]
    config.hook.pytest_deselected(items=[item for item in items if item not in ours])
    items[:] = ours
