"""Holds: of one limit and of several, and their end with a block."""

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
        assert not hold.settle(5) and not limiter.settle(hold.id, 5) and left() == 5


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
    assert hold and [(each.held, each.remaining) for each in hold.results] == [(4, 6), (8, 2)]
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
        assert [each.held for each in hold.results] == [10, 10]
        assert {each.ok for each in told if each.name == name} == {True, False}
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
        assert [each.held for each in second.results] == [1, 1]
        began = time.monotonic()
        assert not client.hold_all(requests, wait=0.3) and time.monotonic() - began >= 0.3
        client.limit(other, count=9)
        assert not client.hold_all(requests, wait=60), "no look at slots brings the tokens of a day"


def test_a_lease_is_waited_for(name, db):
    client = RateLimiter({name: concurrency(1, HOUR)}, db=db)
    first = client.acquire(name, "ada")
    threading.Timer(0.1, first.release).start()
    with client.acquire(name, "ada", wait=60, throws=True):
        with pytest.raises(RateLimitExceeded) as raised:
            client.acquire(name, "ada", wait=0.3, throws=True)
        assert raised.value.name == name and raised.value.retry_after > 60
        # No wait frees more slots than there are; and it ends.
        assert client.acquire(name, "ada", count=2, wait=60).retry_after is None


class Slots:
    """A database of slots: how many are free, and how many calls ask at once."""

    def __init__(self):
        self.free, self.running, self.most = 0, 0, 0

    def begins(self, sql):
        if "rl_release" in sql:
            self.free += 1
            return [[True]]
        self.running += 1
        self.most = max(self.most, self.running)

    def ends(self):
        self.running -= 1
        ok = self.free > 0
        self.free -= ok
        return [[ok, None if ok else 0.05, None, 0, 1, None, None if ok else "slots", "a" if ok else None] + [None] * 3]


def test_of_those_that_wait_for_the_slots_of_a_key_the_first_asks_for_all(name):
    slots, came, lock = Slots(), [], threading.Lock()

    def query(sql, values):
        with lock:
            if rows := slots.begins(sql):
                return rows
        time.sleep(0.002)
        with lock:
            return slots.ends()

    client = RateLimiter({name: concurrency(1, HOUR)}, db=query, schema="public")

    def work(n, key="k", wait=60.0):
        with client.acquire(name, key, wait=wait):
            came.append(n)

    def denied():
        with pytest.raises(RateLimitExceeded):
            work("late", wait=0.1)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(10)]
    threads += [threading.Thread(target=denied), threading.Thread(target=work, args=("other", "another"))]
    for thread in threads:
        thread.start()
        time.sleep(0.005)
    threads[10].join()
    slots.free = 2
    for thread in threads:
        thread.join()
    assert [n for n in came if n != "other"] == list(range(10))
    assert slots.most <= 3, "of each key the first, and one whose time has ended"


async def test_of_those_that_wait_with_await_the_first_asks_for_all(name):
    slots, came = Slots(), []

    async def query(sql, values):
        if rows := slots.begins(sql):
            return rows
        await asyncio.sleep(0.002)
        return slots.ends()

    client = AsyncRateLimiter({name: concurrency(1, HOUR)}, db=query, schema="public")

    async def work(n, wait=60.0):
        async with client.acquire(name, "k", wait=wait):
            came.append(n)

    tasks = [asyncio.create_task(work(n)) for n in range(10)]
    late = asyncio.create_task(work("late", wait=0.1))
    with pytest.raises(RateLimitExceeded):
        await late
    tasks[3].cancel()
    slots.free = 1
    await asyncio.wait(tasks)
    assert came == [0, 1, 2, 4, 5, 6, 7, 8, 9] and slots.most <= 2


def test_reserved_work_that_is_given_up_gives_its_tokens_back(name, db, monkeypatch):
    client = RateLimiter({name: token_bucket(10, DAY, capacity=1)}, db=db)
    client.limit(name)

    def interrupted(seconds):
        assert seconds > 60
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt), client.hold(name, reserve=True, on_exception="charge"):
            pytest.fail("it was entered")
    assert client.check(name, count=0).remaining == pytest.approx(0, abs=0.1)


async def test_reserved_work_that_is_cancelled_gives_its_tokens_back(name):
    async with ASYNC_ALONE["asyncpg Pool"]() as pool:
        client = AsyncRateLimiter({name: token_bucket(10, DAY, capacity=1)}, db=pool)
        await client.limit(name)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.hold(name, reserve=True).__aenter__(), 0.2)
        assert (await client.check(name, count=0)).remaining == pytest.approx(0, abs=0.1)


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
        assert [each.held for each in (await waits).results] == [1, 1]


def test_the_example(name, db):
    limiter = RateLimiter(budget.LIMITS, db=db)
    answer = budget.answer(limiter, lambda question: (question.upper(), 8_500), name, "hello")
    assert answer == "HELLO" and limiter.check("llmTokens", name).remaining == pytest.approx(31_500, abs=500)
    with pytest.raises(GaveUp):
        budget.answer(limiter, fail, name, "hello")
    assert limiter.check("llmTokens", name).remaining == pytest.approx(31_500, abs=3_000)


def fail(question):
    raise GaveUp
