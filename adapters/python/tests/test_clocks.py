"""The application's clock and the database's show different times, and either steps.

An application's times are those of its own clock, and its spans those of the database.
"""

import time
from datetime import datetime, timezone
from math import ceil

import pytest
from conftest import FIXED, MOVING, SLIDING, STORES, every, real_time
from databases import codes, get_from_django
from limits import parse
from limits.storage import storage_from_string
from test_frameworks import (
    STORES_OF_DJANGO,
    fastapi_limited,
    flask_app,
    get_from_fastapi,
    get_from_flask,
    slowapi_app,
    throttled,
)

APART = (-3600, -10, 0, 10, 3600)
# A window of a second, which begins at multiples of its length, has ended then.
START = datetime(2027, 1, 1, 12, 0, 1, tzinfo=timezone.utc).timestamp()
# As a superuser, to set the limiter's clock, on one connection, which keeps it.
OWNER = {"max_size": 1}
OWNERS = "//?user=postgres"


class Clock:
    """The application's clock, this number of seconds ahead."""

    def __init__(self, monkeypatch):
        self.ahead = 0
        monkeypatch.setattr(time, "time", lambda: real_time() + self.ahead)


@pytest.fixture
def application(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def database():
    """Sets the clock of the limiter for a storage, alternately in each of the forms that the setting may have."""
    forms = 0

    def text_of(seconds):
        nonlocal forms
        forms += 1
        at = datetime.fromtimestamp(seconds, timezone.utc).isoformat(" ", "microseconds")
        return at if forms % 2 else str(round(seconds * 1000, 3))

    def set_clock(storage, seconds):
        text = "" if seconds is None else text_of(seconds)
        sql = "SELECT set_config('ratelimit.clock', %s, false)"

        async def set_on(pool):
            async with pool.connection() as connection:
                await connection.execute(sql, [text])

        storage.get(parse("1 per second").key_for())  # opens the pool
        if hasattr(storage, "run"):
            storage.run(set_on(storage.pool))
        else:
            with storage.pool.connection() as connection:
                connection.execute(sql, [text])

    return set_clock


def left(limits, item, key):
    return limits.get_window_stats(item, key).reset_time - time.time()


# The seconds that are left of 5, and over steps of the database's clock. Where it steps back, what was taken leaves the
# window when it shows that time; limits can't say more than a window of a sliding window.
LEFT = {FIXED: {0: 5, 2: 3, -10: 15, -3600: 3605}, MOVING: {0: 5, 2: 3, -10: 15, -3600: 3605}, SLIDING: {0: 4, 2: 2, -10: 5, -3600: 5}}


@every
def test_the_time_that_is_left_whatever_the_clocks_show(application, database, create, limiter, strategy, store):
    storage, item = create(OWNERS, store=store, **OWNER), parse("2 per 5 seconds")
    limits = limiter(strategy, storage)
    for ahead in APART:
        application.ahead, key = ahead, f"set {ahead}"
        database(storage, START)
        assert left(limits, item, key) == pytest.approx(0 if strategy != MOVING else 5, abs=1)
        assert limits.hit(item, key)
        for step, expected in LEFT[strategy].items():
            database(storage, START + step)
            for other in APART:
                application.ahead = other
                assert left(limits, item, key) == pytest.approx(expected, abs=1), (step, ahead, other)
                assert limits.test(item, key)
        database(storage, START)
        assert limits.hit(item, key)
        for step in LEFT[strategy]:
            database(storage, START + step)
            assert not limits.test(item, key) and not limits.hit(item, key)
            assert limits.get_window_stats(item, key).remaining == 0
        database(storage, START + 20)
        assert limits.get_window_stats(item, key).remaining == 2 and limits.hit(item, key)
    database(storage, None)
    for application.ahead in APART:
        key = f"running {application.ahead}"
        # Between two looks at the application's clock the database's goes on.
        assert limits.hit(item, key)
        assert -1 < left(limits, item, key) <= (5 if strategy == SLIDING else 5.01)
        if strategy != SLIDING:
            assert left(limits, item, key) == pytest.approx(5, abs=1)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("create_app, get", [(flask_app, get_from_flask), (slowapi_app, get_from_fastapi)])
@pytest.mark.parametrize("strategy", [FIXED, MOVING, SLIDING])
def test_the_headers(application, database, name, create_app, get, strategy, store):
    if (strategy, store) == (MOVING, "memory"):
        return
    options = {"storage_uri": "postgresql+ratelimit:" + OWNERS, "strategy": strategy}
    app, limiter, storage = create_app("1 per 5 seconds", storage_options={"name": name, "store": store, **OWNER}, **options)
    # They round up, by adding a second, to a whole one.
    seconds = lambda answer: int(answer.headers["Retry-After"])  # noqa: E731
    for clock in (START, None):
        for application.ahead in APART:
            limiter.reset()
            database(storage, clock)
            if clock is None and strategy == SLIDING:
                continue  # what is left depends on the time
            expected = LEFT[strategy][0]
            began = time.monotonic()
            passed, denied = get(app, 1)[0], get(app, 1)[0]
            # What a running clock has gone on meanwhile.
            late = 0 if clock else time.monotonic() - began
            assert (passed.status_code, denied.status_code) == (200, 429)
            for answer in (passed, denied):
                assert expected - ceil(late) <= seconds(answer) <= expected + 1
                assert float(answer.headers["X-RateLimit-Reset"]) == pytest.approx(time.time() + expected, abs=2 + late)
            if clock is None:
                continue
            for step, expected in LEFT[strategy].items():
                database(storage, START + step)
                (denied,) = get(app, 1)
                assert (denied.status_code, seconds(denied) in (expected, expected + 1)) == (429, True), denied.headers
    storage.pool.close()


@pytest.mark.parametrize("create", STORES_OF_DJANGO)
def test_django_counts_by_the_clock_of_the_database(application, create, name):
    for application.ahead in (-10, 10):
        view = create(2, f"{name} {application.ahead}")
        assert codes(get_from_django(view, 2)) == [200, 200]
        application.ahead *= -1
        (denied,) = get_from_django(view)
        assert denied.status_code == 429
        if create is throttled:
            assert int(denied.headers["Retry-After"]) == pytest.approx(3600, abs=5)


async def test_fastapi_limiter_counts_by_the_clock_of_the_database(application, name):
    async with fastapi_limited(2, name) as get:
        answers = []
        for application.ahead in (-10, 10, -10):
            answers += await get()
        assert answers == [200, 200, 429]


def test_a_key_that_is_blocked_is_told_when_that_ends(application, database, create, name):
    storage, key = create(OWNERS, **OWNER), parse("2 per 5 seconds").key_for()
    database(storage, START)
    blocking = storage_from_string("postgresql+ratelimit:" + OWNERS, name=name)
    with blocking.pool as pool, pool.connection() as connection:
        for until, expected in (("2027-01-01 12:01:31+00", 90), ("infinity", 5)):
            connection.execute("SELECT rl_block(%s, %s, until => %s)", [f"{name}:{FIXED}", key, until])
            for application.ahead in APART:
                assert storage.get_expiry(key) - time.time() == pytest.approx(expected, abs=1)
