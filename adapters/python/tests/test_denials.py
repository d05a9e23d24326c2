"""Denials that a process remembers: what they answer, and for how long."""

import time
from dataclasses import replace

import psycopg
import pytest
from conftest import FIXED, MOVING, SLIDING, window_with_room
from databases import ASYNC_ALONE, TRANSACTIONS, GaveUp, codes, get_from_django
from limits import parse
from psycopg_pool import ConnectionPool
from test_failing import django_goes_to_the_environment
from test_frameworks import atomic_requests, fastapi_limited, throttled

from postgres_rate_limit import HOUR, AsyncRateLimiter, RateLimiter, fixed_window, token_bucket
from postgres_rate_limit._denials import Denials

TEN = fixed_window(10, HOUR, start="first request")
LONG = {"at_most": 3600}


@pytest.fixture
def requests(proxy):
    """How many statements arrived since it was asked last."""
    before = 0

    def count():
        nonlocal before
        new, before = proxy.requests - before, proxy.requests
        return new

    return count


@pytest.fixture
def db(requests):
    with psycopg.connect(autocommit=True, prepare_threshold=None) as connection:
        yield connection


def test_a_denial_is_answered_without_a_call(name, db, requests):
    told = []
    client = RateLimiter({name: TEN}, db=db, remember_denials=LONG, on_decision=told.append)
    client.limit(name, count=8)
    first = client.limit(name, count=4, headers="ietf")
    requests()
    again = client.limit(name, count=4, headers="ietf")
    assert not again and again.retry_at == first.retry_at
    assert first.retry_after - 60 < again.retry_after < first.retry_after
    assert set(again.headers) == set(first.headers) and int(again.headers["Retry-After"]) <= first.retry_after + 1
    assert not client.limit(name, count=5, headers="ietf") and not client.check(name, count=99, headers="ietf")
    assert requests() == 0
    assert [each.remembered for each in told] == [False, False, True, True] and told[-1].ok is False
    assert client.limit(name, count=1) and requests() == 1, "a smaller count is asked"
    assert not client.limit(name, "other", count=11) and not client.limit(name, "other", count=11)
    assert client.limit(name, "third") and requests() == 2


def test_it_ends_with_the_denial_or_before(name, db, requests):
    client = RateLimiter({name: token_bucket(10, HOUR / 3600)}, db=db, remember_denials=LONG)  # ten a second
    client.limit(name, count=10)
    denied = client.limit(name, count=3)
    assert 0 < denied.retry_after <= 0.3
    ends = time.monotonic() + denied.retry_after
    while not client.limit(name, count=3):
        assert time.monotonic() < ends + 60
    assert time.monotonic() < ends + 60
    shortly = RateLimiter({name: TEN}, db=db, remember_denials={"at_most": 0.01, "max": 5})
    shortly.limit(name, "short", count=10)
    for _ in range(2):
        requests()
        assert not shortly.limit(name, "short") and requests() == 1
        time.sleep(0.02)


def test_what_the_client_itself_gives_back_is_noticed(name, db):
    client = RateLimiter({name: TEN}, db=db, remember_denials=LONG)
    for gives in (lambda: client.reset(name, "a"), lambda: client.credit(name, "a", 10)):
        client.limit(name, "a", count=10)
        assert not client.limit(name, "a") and not client.limit_all([{"name": name, "key": "a"}])
        gives()
        assert client.limit(name, "a", count=5) and client.limit_all([{"name": name, "key": "a", "count": 5}])


@pytest.mark.parametrize("forgets", [("n", "a"), None])
def test_a_denial_of_a_call_that_was_sent_before_a_reset_is_not_remembered(forgets):
    denials = Denials({"max": 3, "at_most": 60})
    of_limit, of_other, of_list = (("n", "a"), "limit"), (("n", "b"), "limit"), (None, "all")
    sent = time.monotonic()
    denials.add(of_other, 1, sent, None, "denied")
    denials.forget(forgets)
    for id in (of_limit, of_list):
        denials.add(id, 1, sent, None, "denied")
    found = [bool(denials.find(id, 1)) for id in (of_limit, of_other, of_list)]
    assert found == [False, forgets is not None, False]
    time.sleep(0.001)
    for id in (of_limit, of_list):
        denials.add(id, 1, time.monotonic(), None, "denied")
        assert denials.find(id, 1), "sent after it"
    for key in "cdef":
        denials.forget(("n", key))
    denials.add(of_limit, 1, sent, None, "denied")
    assert not denials.find(of_limit, 1), "though newer ones are known"


def test_a_denial_that_comes_after_a_reset_is_not_remembered(name, db, monkeypatch):
    client = RateLimiter({name: TEN}, db=db, remember_denials=LONG)
    client.limit(name, count=10)
    read = client._calls.limit

    def late(*arguments):
        call = read(*arguments)

        def answer(rows):
            client.reset(name)
            return call.read(rows)

        return replace(call, read=answer)

    with monkeypatch.context() as patched:
        patched.setattr(client._calls, "limit", late)
        assert not client.limit(name)
    assert client.limit(name)


def test_a_reset_takes_no_longer_with_many_denials():
    denials = Denials({"max": 10_000, "at_most": 60})
    for key in range(10_000):
        denials.add((("n", str(key)), "limit"), 1, time.monotonic(), None, "denied")
    began = time.thread_time()
    for key in range(100):
        denials.forget(("n", str(key)))
    assert time.thread_time() - began < 0.02 and not denials.find((("n", "7"), "limit"), 1)


def test_several_limits(name, db, requests):
    client = RateLimiter({name: TEN, f"other {name}": TEN}, db=db, remember_denials=LONG)
    asked = [{"name": name, "count": 9}, {"name": f"other {name}"}]
    assert client.limit_all(asked)
    first = client.limit_all(asked)
    requests()
    again = client.limit_all(asked)
    assert not again and again.denied_by.name == name and again.retry_after < first.retry_after and requests() == 0
    assert not client.check_all(asked) and requests() == 0
    assert client.limit_all(asked[1:]) and requests() == 1


@pytest.mark.parametrize("kind", ["psycopg Connection", "SQLAlchemy Session", "a function"])
def test_a_denial_in_a_transaction_is_not_remembered(kind, name):
    client = RateLimiter({name: TEN}, remember_denials=LONG)
    with pytest.raises(GaveUp), TRANSACTIONS[kind]() as db:
        assert client.limit(name, count=10, db=db) and not client.limit(name, db=db)
        raise GaveUp
    with ConnectionPool(min_size=1) as pool:
        assert client.limit(name, count=10, db=pool) and not client.limit(name, db=pool)
        with TRANSACTIONS[kind]() as db:
            RateLimiter({name: TEN}).reset(name, db=db)
            assert client.limit(name, db=db), "nor is one remembered answered in a transaction"


async def test_with_await(name, requests):
    async with ASYNC_ALONE["psycopg AsyncConnectionPool"]() as pool:
        client = AsyncRateLimiter({name: TEN}, db=pool, remember_denials=True)
        await client.limit(name, count=10)
        denied = await client.limit(name)
        began = time.monotonic()
        requests()
        assert (await client.limit(name)).retry_after < denied.retry_after
        assert requests() == 0 or time.monotonic() > began + 0.5


def test_the_least_recently_used_goes():
    denials = Denials({"max": 2, "at_most": 60})
    for id in ("a", "b"):
        denials.add((id,), 1, time.monotonic(), None, id)
    assert denials.find(("a",), 1) and denials.find(("a",), 0.5) is None
    denials.add(("c",), 1, time.monotonic(), 60, "c")
    assert [bool(denials.find((id,), 1)) for id in "abc"] == [True, False, True]
    denials.add(("a",), 1, time.monotonic() - 61, None, "a")
    assert denials.find(("a",), 1) is None and not Denials(False)


@pytest.mark.parametrize("strategy", [FIXED, MOVING, SLIDING])
def test_a_storage_remembers(strategy, create, limiter, requests):
    window_with_room(3600, 10)
    storage, item = create(max_size=1, remember_denials=LONG), parse("3 per hour")
    limits = limiter(strategy, storage)
    assert limits.hit(item, "a", cost=2) and not limits.hit(item, "a", cost=2)
    stats = limits.get_window_stats(item, "a")
    requests()
    for _ in range(5):
        assert not limits.hit(item, "a", cost=2)
        again = limits.get_window_stats(item, "a")
        assert again.remaining == 1 and again.reset_time == pytest.approx(stats.reset_time, abs=0.5)
    assert requests() == 0
    assert limits.hit(item, "a") and limits.hit(item, "b") and requests() == 2
    assert not limits.hit(item, "a") and not limits.hit(item, "a") and requests() == 1
    limits.clear(item, "a")
    assert limits.hit(item, "a")
    storage.reset()
    assert limits.hit(item, "a", cost=3)


@pytest.mark.parametrize("kind", ["sliding log", "fixed window"])
def test_a_throttle_of_django_remembers(kind, name, requests):
    with django_goes_to_the_environment(CONN_MAX_AGE=None):
        view = throttled(2, name, kind=kind, remember_denials=LONG)
        first = get_from_django(view, 3)
        requests()
        again = get_from_django(view, 3)
        assert codes(first) == [200, 200, 429] and codes(again) == [429] * 3 and requests() == 0
        assert int(again[2].headers["Retry-After"]) == pytest.approx(int(first[2].headers["Retry-After"]), abs=10)
        assert codes(get_from_django(view, **{"x-forwarded-for": "other"})) == [200] and requests() > 0
        with atomic_requests():
            assert codes(get_from_django(view)) == [429] and requests() > 0, "in a transaction the database is asked"


async def test_fastapi_limiter_remembers(name, requests):
    async with fastapi_limited(2, name, remember_denials=LONG) as get:
        assert sorted(await get(3)) == [200, 200, 429]
        requests()
        assert await get(5) == [429] * 5 and requests() == 0
        assert await get(1, "b") == [200] and requests() > 0
