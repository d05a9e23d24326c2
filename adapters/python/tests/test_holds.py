"""Holds: of one limit and of several, and what becomes of them at the end of a block."""

import asyncio
import threading
import time
from datetime import datetime, timedelta, timezone

import psycopg
import pytest
from databases import ALONE, ASYNC_ALONE, TRANSACTIONS, GaveUp
from examples import budget

from postgres_rate_limit import (
    DAY,
    HOUR,
    AsyncRateLimiter,
    RateLimiter,
    RateLimitExceeded,
    concurrency,
    fixed_window,
    token_bucket,
)

with psycopg.connect() as connection:
    (THERE,) = connection.execute("SELECT EXISTS (SELECT FROM pg_proc WHERE proname = 'rl_hold')").fetchone()
pytestmark = pytest.mark.skipif(not THERE, reason="the database has no holds")
TEN = fixed_window(10, DAY, start="first request")


@pytest.fixture
def db():
    with psycopg.connect(autocommit=True) as connection:
        yield connection


@pytest.fixture
def names(name):
    return name, f"other {name}"


@pytest.fixture
def limiter(names, db):
    return RateLimiter({name: TEN for name in names}, db=db)


@pytest.fixture
def left(limiter, name):
    """The tokens that the key of a test has."""
    return lambda which=name: limiter.check(which, "ada").remaining


@pytest.mark.parametrize("kind", ALONE)
def test_a_hold_is_settled_once(kind, name, limiter, left):
    with ALONE[kind]() as db:
        hold = RateLimiter({name: TEN}, db=db).hold(name, "ada", 8, ttl=timedelta(minutes=1))
        assert hold and (hold.held, hold.remaining, hold.capacity, left()) == (8, 2, 10, 2)
        assert hold.expires_at == pytest.approx(
            datetime.now(timezone.utc) + timedelta(minutes=1), abs=timedelta(seconds=30)
        )
        settled = hold.settle(5)
        assert settled.ok and settled.remaining == left() == 5
        assert hold.settle(5) is None and not limiter.settle(hold.id, 5) and left() == 5


def test_the_end_of_a_block(name, limiter, left):
    with limiter.hold(name, "ada", 8) as hold:
        hold.settle(1)
    assert left() == 9
    with limiter.hold(name, "ada", 8) as hold:
        hold.used = 2
    assert left() == 7
    with limiter.hold(name, "ada", 3):
        pass
    assert left() == 4
    with pytest.raises(GaveUp), limiter.hold(name, "ada", 3):
        raise GaveUp
    assert left() == 4
    with pytest.raises(GaveUp), limiter.hold(name, "ada", 3) as hold:
        hold.used = 1
        raise GaveUp
    assert left() == 3
    with pytest.raises(GaveUp), limiter.hold(name, "ada", 2, on_exception="charge"):
        raise GaveUp
    assert left() == 1
    with pytest.raises(GaveUp), limiter.hold(name, "ada", 1) as hold:
        hold.settle(0)
        raise GaveUp
    assert left() == 1
    with pytest.raises(RateLimitExceeded) as raised, limiter.hold(name, "ada", 2):
        pytest.fail("it was entered")
    assert raised.value.name == name and raised.value.retry_after > 3600 and left() == 1


def test_a_hold_of_fewer_and_one_that_is_extended(name, limiter, left):
    hold = limiter.hold(name, "ada", 30, at_least=4, id=f"of {name}", ttl=60)
    assert (hold.held, hold.id, left()) == (10, f"of {name}", 0)
    ends = hold.expires_at
    assert hold.extend() and hold.expires_at >= ends and hold.held == 10
    hold.settle(4)
    hold = limiter.hold(name, "ada", 2)
    assert hold.extend(5) and hold.held == 5 and left() == 1
    assert not hold.extend(50) and hold.held == 5 and left() == 1
    hold.settle(0)
    assert left() == 6
    again = [limiter.hold(name, "ada", 5, id=f"turn of {name}", on_expiry="charge").held for _ in range(2)]
    assert again == [5, 5] and left() == 1


def test_a_hold_in_the_transaction_of_the_caller(name, limiter, left):
    with pytest.raises(GaveUp), TRANSACTIONS["psycopg Connection"]() as db:
        limiter.hold(name, "ada", 5, db=db)
        raise GaveUp
    assert left() == 10
    hold = limiter.hold(name, "ada", 5)
    with pytest.raises(GaveUp), TRANSACTIONS["SQLAlchemy Session"]() as db:
        hold.settle(1, db=db)
        raise GaveUp
    assert left() == 5
    with TRANSACTIONS["SQLAlchemy Session"]() as db:
        limiter.settle(hold.id, 1, db=db)  # that of the transaction that stores the answer
    assert left() == 9


def test_a_settlement_that_rolls_back_is_made_by_the_end_of_the_block(name, limiter, left):
    for kind in ("psycopg Connection", "SQLAlchemy Session", "SQLAlchemy Connection"):
        before = left()
        with pytest.raises(GaveUp), limiter.hold(name, "ada", 3) as hold, TRANSACTIONS[kind]() as db:
            hold.settle(1, db=db)
            raise GaveUp
        assert left() == before - 1, kind
        with limiter.hold(name, "ada", 3) as hold, TRANSACTIONS[kind]() as db:
            hold.settle(1, db=db)
        assert left() == before - 2, kind
        # In a transaction that goes on, the end of the block doesn't wait for its locks.
        with (
            pytest.raises(GaveUp),
            TRANSACTIONS[kind]() as db,
            limiter.hold(name, "ada", 1, id=f"{kind} {name}") as hold,
        ):
            hold.settle(1, db=db)
            raise GaveUp
        limiter.settle(f"{kind} {name}", 0)


async def test_a_settlement_that_rolls_back_with_await(name, left):
    async with ASYNC_ALONE["asyncpg Pool"]() as pool:
        client = AsyncRateLimiter({name: TEN}, db=pool)
        with pytest.raises(GaveUp):
            async with client.hold(name, "ada", 8) as hold, pool.acquire() as db, db.transaction():
                await hold.settle(2, db=db)
                raise GaveUp
        assert left() == 8


@pytest.mark.parametrize("used", [float("nan"), float("inf"), -1, "3", "much", []])
def test_what_is_no_number_is_settled_as_held(used, name, names, limiter, left, caplog):
    with limiter.hold(name, "ada", 2) as hold:
        hold.used = used
    assert left() == 8 and repr(used) in caplog.text
    with limiter.hold(name, "ada", 2) as hold:
        assert hold.settle(used).ok
    assert left() == 6
    with limiter.hold_all([{"name": each, "key": "ada", "count": 2} for each in names]) as hold:
        hold.used = {names[0]: used, names[1]: 1}
    assert (left(), left(names[1])) == (4, 9)
    with limiter.hold_all([{"name": name, "key": "ada", "count": 2}]) as hold:
        hold.settle(used)
    assert left() == 2


def test_several_limits(names, limiter, left):
    first, second = names
    requests = [{"name": first, "key": "ada", "count": 4}, {"name": second, "key": "ada", "count": 8}]
    hold = limiter.hold_all(requests, ttl=60)
    assert hold and list(hold.held) == [4, 8] and [each.remaining for each in hold.limits] == [6, 2]
    assert [each.name for each in hold.settle({second: 5})] == [first, second] if first < second else True
    assert (left(first), left(second)) == (6, 5) and hold.settle() == [] and limiter.settle_all(hold.id) == []
    denied = limiter.hold_all(requests)
    assert not denied and denied.denied_by.name == second and denied.id is None
    with pytest.raises(RateLimitExceeded) as raised, limiter.hold_all(requests):
        pytest.fail("it was entered")
    assert raised.value.name == second
    requests[1]["count"] = 5
    with pytest.raises(GaveUp), limiter.hold_all(requests):
        raise GaveUp
    assert (left(first), left(second)) == (6, 5)
    with limiter.hold_all(requests) as hold:
        hold.used = {first: 0}
    assert (left(first), left(second)) == (6, 0)


@pytest.mark.parametrize("kind", ASYNC_ALONE)
async def test_the_end_of_a_block_with_await(kind, names, left):
    name, other = names
    async with ASYNC_ALONE[kind]() as db:
        client = AsyncRateLimiter({each: TEN for each in names}, db=db)
        async with client.hold(name, "ada", 8) as hold:
            assert await hold.extend(9) and left() == 1
            assert (await hold.settle(1)).remaining == 9
        hold = await client.hold(name, "ada", 8)
        assert (await client.settle(hold.id, 2)).remaining == left() == 7
        with pytest.raises(GaveUp):
            async with client.hold(name, "ada", 3):
                raise GaveUp
        with pytest.raises(RateLimitExceeded):
            async with client.hold(name, "ada", 8):
                pytest.fail("it was entered")
        assert left() == 7
        entered = asyncio.Event()

        async def work():
            async with client.hold(name, "ada", 3):
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(work())
        await entered.wait()
        assert left() == 4
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert left() == 7
        requests = [{"name": each, "key": "ada", "count": 4} for each in names]
        async with client.hold_all(requests) as both:
            await both.settle({other: 1})
        assert (left(name), left(other)) == (3, 9) and await client.settle_all(both.id) == []


def test_a_call_waits_for_a_hold(name, db):
    told = []
    client = RateLimiter({name: token_bucket(10, DAY)}, db=db, on_decision=told.append)
    client.hold(name, count=10, ttl=0.3)
    assert client.hold(name, count=10, wait=60) and [each.ok for each in told][:2] == [True, False] and told[-1].ok


def test_a_call_waits_for_holds_of_several_limits_and_keeps_nothing_meanwhile(names, db):
    name, other = names
    told = []
    client = RateLimiter({each: token_bucket(10, DAY) for each in names}, db=db, on_decision=told.append)
    requests = [{"name": each, "count": 10} for each in names]
    client.hold(name, count=10, ttl=0.3)
    with client.hold_all(requests, wait=60) as hold:
        assert hold.held == [10, 10] and {each.ok for each in told if each.name == name} == {True, False}
        assert not client.hold_all(requests, wait=1)  # which comes in ten minutes
        hold.settle(0)
    assert not client.hold_all([{"name": name, "count": 11}], wait=60)  # which never comes


def test_a_call_that_waits_gets_a_slot_that_is_released(names, db):
    name, other = names
    client = RateLimiter({name: concurrency(1, HOUR), other: token_bucket(10, DAY)}, db=db)
    requests = [{"name": name}, {"name": other}]
    first = client.hold_all(requests)
    threading.Timer(0.1, lambda: first.settle(0)).start()
    with client.hold_all(requests, wait=60) as second:
        assert second.held == [1, 1]
        began = time.monotonic()
        assert not client.hold_all(requests, wait=0.3) and time.monotonic() - began >= 0.3
        client.limit(other, count=9)
        assert not client.hold_all(requests, wait=60), "no look at slots brings the tokens of a day"


@pytest.mark.parametrize("kind", ASYNC_ALONE)
async def test_a_call_waits_for_holds_of_several_limits_with_await(kind, names):
    name, other = names
    async with ASYNC_ALONE[kind]() as db:
        client = AsyncRateLimiter({name: concurrency(1, HOUR), other: token_bucket(10, DAY)}, db=db)
        requests = [{"name": name}, {"name": other}]
        first = await client.hold_all(requests)
        waits = asyncio.create_task(client.hold_all(requests, wait=60).__aenter__())
        await asyncio.sleep(0.1)
        await first.settle(0)
        assert (await waits).held == [1, 1]


def test_the_example(name, db):
    limiter = RateLimiter(budget.LIMITS, db=db)
    answer = budget.answer(limiter, lambda question: (question.upper(), 8_500), name, "hello")
    assert answer == "HELLO" and limiter.check("llmTokens", name).remaining == pytest.approx(31_500, abs=500)
    with pytest.raises(GaveUp):
        budget.answer(limiter, fail, name, "hello")
    assert limiter.check("llmTokens", name).remaining == pytest.approx(31_500, abs=3_000)


def fail(question):
    raise GaveUp
