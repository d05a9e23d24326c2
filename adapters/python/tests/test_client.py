"""The clients on each kind of db: the caller's transaction, answers, errors, waits, and what on_decision gets."""

import asyncio
import logging
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from conftest import ON_FILE
from databases import ALONE, ASYNC_ALONE, ASYNC_TRANSACTIONS, TRANSACTIONS, GaveUp, async_engine, engine
from psycopg_pool import ConnectionPool

from postgres_rate_limit._calls import Call
from postgres_rate_limit import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    WEEK,
    AsyncRateLimiter,
    RateLimiter,
    RateLimitExceeded,
    SetupError,
    UnknownLimit,
    address_key,
    concurrency,
    fixed_window,
    sliding_log,
    sliding_window,
    token_bucket,
    unlimited,
)

# A limit with tokens that don't come back one by one meanwhile.
TWO = fixed_window(2, HOUR, start="first request")


@contextmanager
def owner(database=None):
    with psycopg.connect(f"user=postgres{database and ' dbname=' + database or ''}", autocommit=True) as connection:
        yield connection


@pytest.fixture
def connection():
    with psycopg.connect(autocommit=True) as connection:
        yield connection


@pytest.fixture
def limiter(name, connection):
    return RateLimiter({name: TWO}, db=connection)


@pytest.fixture
def pool():
    with ConnectionPool(min_size=1, kwargs={"prepare_threshold": None}) as pool:
        yield pool


# What a driver does is the same on both editions: on the file one of each kind will do.
def each_of(kinds):
    return pytest.mark.parametrize("kind", list(kinds)[:1] if ON_FILE else list(kinds))


# The caller's transaction.


@each_of(TRANSACTIONS)
def test_a_rollback_returns_the_token_and_a_commit_keeps_it(kind, name, limiter):
    with pytest.raises(GaveUp), TRANSACTIONS[kind]() as db:
        assert limiter.limit(name, db=db).remaining == 1
        assert limiter.limit(name, db=db) and not limiter.limit(name, db=db)
        assert limiter.check(name).remaining == 2  # on another connection
        raise GaveUp
    assert limiter.check(name).remaining == 2
    with TRANSACTIONS[kind]() as db:
        assert limiter.limit(name, count=2, db=db)
    assert not limiter.check(name)


@each_of(ASYNC_TRANSACTIONS)
async def test_a_rollback_returns_the_token_and_a_commit_keeps_it_with_await(kind, name, limiter):
    client = AsyncRateLimiter({name: TWO})
    with pytest.raises(GaveUp):
        async with ASYNC_TRANSACTIONS[kind]() as db:
            assert (await client.limit(name, db=db)).remaining == 1
            assert await client.limit(name, db=db) and not await client.limit(name, db=db)
            assert limiter.check(name).remaining == 2  # on another connection
            raise GaveUp
    assert limiter.check(name).remaining == 2
    async with ASYNC_TRANSACTIONS[kind]() as db:
        assert await client.limit(name, count=2, db=db)
    assert not limiter.check(name)


@each_of(TRANSACTIONS)
def test_a_denial_that_is_raised_aborts_no_transaction(kind, name, limiter):
    with TRANSACTIONS[kind]() as db:
        with pytest.raises(RateLimitExceeded):
            limiter.limit(name, count=3, throws=True, db=db)
        assert limiter.limit(name, db=db)
    assert limiter.check(name).remaining == 1


# The answers, of every call on every kind of db on which calls stand alone.

KINDS = {
    "bucket": token_bucket(3, HOUR, capacity=5, max_reserved=10),
    "window": fixed_window(5, DAY, timezone="Europe/Berlin"),
    "aligned": fixed_window(5, HOUR, start=datetime(2026, 1, 1, tzinfo=timezone.utc)),
    "counters": sliding_window(5, WEEK),
    "log": sliding_log(5, 90 * SECOND),
    "slots": concurrency(2, 5 * MINUTE),
    "free": unlimited(),
    "dict": {"kind": "token bucket", "rate": 5, "period": HOUR},
    "calendar": {"kind": "fixed window", "rate": 5, "period": 7 * DAY, "timezone": "UTC"},
}


def limits_of(name):
    return {f"{kind} of {name}": config for kind, config in KINDS.items()}


@each_of(ALONE)
def test_every_call(kind, name):
    bucket, window, aligned, counters, entries, slots, free, as_dict, calendar = limits = limits_of(name)
    with ALONE[kind]() as db:
        client = RateLimiter(limits, db=db)
        assert client.names == tuple(limits)
        for each in (window, aligned, counters, entries, as_dict, calendar):
            assert client.limit(each, 7, count=4).remaining == 1
            assert int(client.check(each, "7").remaining) == 1 and not client.check(each, 7, count=2)
        assert client.limit(free).remaining is None
        user = uuid4()
        taken = client.limit(bucket, user, count=4)
        assert (taken.ok, taken.remaining, taken.capacity, taken.retry_after) == (True, 1, 5, None)
        assert isinstance(user, UUID) and client.check(bucket, str(user)).remaining == pytest.approx(1, abs=0.1)
        denied = client.limit(bucket, user, count=3)
        assert not denied and denied.retry_after == pytest.approx(2400, abs=60)
        assert denied.retry_at == pytest.approx(
            datetime.now(timezone.utc) + timedelta(seconds=2400), abs=timedelta(minutes=1)
        )
        assert denied.headers == {"Retry-After": str(-int(-denied.retry_after // 1))}
        never = client.limit(bucket, user, count=6)
        assert (never.ok, never.retry_after, never.retry_at, never.headers) == (False, None, None, {})
        reserved = client.limit(bucket, user, count=3, reserve=True)
        assert reserved.ok and reserved.remaining < -1 and reserved.retry_at > datetime.now(timezone.utc)
        assert client.credit(bucket, user, 4).remaining == pytest.approx(2, abs=0.1)
        assert client.credit(window, 7, 2, taken_at=datetime(2026, 1, 1, tzinfo=timezone.utc)).remaining == 1
        assert client.reset(bucket, user) and not client.reset(bucket, user)

        requests = [{"name": bucket, "key": user, "count": 4}, {"name": entries, "key": 8}, {"name": free}]
        both = client.limit_all(requests)
        assert both and [each.remaining for each in both] == [1, 4, None] and both.denied_by is None
        assert (both.results[0].name, both.results[0].key, both.retry_after) == (bucket, str(user), None)
        both = client.check_all(requests)
        assert [each.limited_by for each in both] == ["tokens", None, None] and both.denied_by.name == bucket and not both
        assert both.retry_after == pytest.approx(3600, abs=60) and both.retry_at == both.denied_by.retry_at
        assert int(both.headers["Retry-After"]) == pytest.approx(3600, abs=60)
        never = client.limit_all([*requests, {"name": window, "count": 99}])
        assert never.denied_by and never.retry_after is None and never.headers == {}  # in every row: it has no wait
        with pytest.raises(RateLimitExceeded) as raised:
            client.limit_all(requests, throws=True)
        assert raised.value.name == bucket and raised.value.headers == client.check_all(requests).headers

        with client.acquire(slots, 7) as lease:
            assert lease.ok and lease.remaining == 1 and lease.extend()
            assert lease.expires_at == pytest.approx(datetime.now(timezone.utc) + 5 * MINUTE, abs=timedelta(minutes=1))
            assert client.check(slots, 7).remaining == 1
            assert not client.acquire(slots, 7, count=2)
            with pytest.raises(RateLimitExceeded) as raised, client.acquire(slots, 7, count=2):
                pytest.fail("it was entered")
            assert raised.value.retry_after == pytest.approx(300, abs=60)
        assert not lease.release() and client.check(slots, 7).remaining == 2
        other = client.acquire(slots, 7)
        assert client.extend(slots, other.id) > datetime.now(timezone.utc) and client.release(slots, other.id)
        assert client.extend(slots, other.id) is None and not client.release(slots, other.id) and not other.release()
        with client.acquire(free) as lease:
            assert (lease.ok, lease.id, lease.extend(), lease.release()) == (True, None, True, True)

        told = client.limit(bucket, user, count=3, headers="ietf")
        assert set(told.headers) == {"RateLimit", "RateLimit-Policy", "Retry-After"}
        assert "x-ratelimit-remaining" in client.check(bucket, user, headers="github").headers
        told = client.limit_all(requests, headers="ietf").headers
        assert set(told) == {"RateLimit", "RateLimit-Policy", "Retry-After"} and "q=5;w=90" in told["RateLimit-Policy"]


@each_of(ASYNC_ALONE)
async def test_every_call_with_await(kind, name):
    bucket, *_, slots, free, _, _ = limits = limits_of(name)
    async with ASYNC_ALONE[kind]() as db:
        client = AsyncRateLimiter(limits, db=db)
        assert (await client.limit(bucket, 7, count=4)).remaining == 1
        denied = await client.limit(bucket, 7, count=3, headers="ietf")
        assert not denied and denied.retry_after == pytest.approx(2400, abs=60) and "RateLimit" in denied.headers
        assert denied.retry_at == pytest.approx(
            datetime.now(timezone.utc) + timedelta(seconds=2400), abs=timedelta(minutes=1)
        )
        with pytest.raises(RateLimitExceeded):
            await client.limit(bucket, 7, count=3, throws=True)
        assert not await client.check(bucket, 7, count=3)
        assert (await client.credit(bucket, 7, 2, taken_at=datetime.now(timezone.utc))).remaining == pytest.approx(
            3, abs=0.1
        )
        assert await client.reset(bucket, 7) and not await client.reset(bucket, 7)
        requests = [{"name": bucket, "key": 7, "count": 4}, {"name": free}]
        assert [each.remaining for each in await client.limit_all(requests)] == [1, None]
        assert (await client.check_all(requests)).denied_by.name == bucket
        with pytest.raises(RateLimitExceeded):
            await client.limit_all(requests, throws=True)
        async with client.acquire(slots, 7) as lease:
            assert await lease.extend() and (await client.check(slots, 7)).remaining == 1
            with pytest.raises(RateLimitExceeded):
                async with client.acquire(slots, 7, count=2):
                    pytest.fail("it was entered")
        assert not await lease.release() and (await client.check(slots, 7)).remaining == 2
        other = await client.acquire(slots, 7)
        assert await client.extend(slots, other.id) and await client.release(slots, other.id)
        async with client.acquire(free) as lease:
            assert (lease.ok, lease.id, await lease.extend(), await lease.release()) == (True, None, True, True)


async def test_the_value_of_a_limit(name, connection):
    client = RateLimiter({name: {**KINDS["bucket"], "rate": 1}}, db=connection)
    assert client.value(name, "ada")["state"] is None
    client.limit(name, "ada", count=2)
    value = client.value(name, "ada")
    assert value["config"]["rate"] == 1 and value["state"]["value"] == 3 and value["blockedUntil"] is None
    assert datetime.fromtimestamp(value["now"] / 1000, timezone.utc) > datetime(2026, 1, 1, tzinfo=timezone.utc)
    async with ASYNC_ALONE["asyncpg Pool"]() as pool:
        assert (await AsyncRateLimiter({name: KINDS["bucket"]}, db=pool).value(name, "ada"))["state"]["value"] == 3


@pytest.mark.edition("extension")
def test_limits_in_memory(name, connection):
    client = RateLimiter({name: token_bucket(2, HOUR, store="memory")}, db=connection)
    with pytest.raises(GaveUp), connection.transaction():
        client.limit(name)
        raise GaveUp
    assert client.check(name).remaining == pytest.approx(1, abs=0.1)  # which a rollback doesn't give back


def test_of_many_threads_at_once_exactly_the_limit_passes(name, pool):
    client = RateLimiter({name: token_bucket(10, DAY)}, db=pool)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: client.limit(name).ok, range(40)))
    assert answers.count(True) == 10


async def test_of_many_tasks_at_once_just_the_limit_passes(name):
    async with ASYNC_ALONE["asyncpg Pool"]() as pool:
        client = AsyncRateLimiter({name: token_bucket(10, DAY)}, db=pool)
        answers = await asyncio.gather(*(client.limit(name) for _ in range(40)))
    assert [answer.ok for answer in answers].count(True) == 10


# Blocks that fail.


@each_of(["psycopg Connection", "SQLAlchemy Session", "Django connection"])
def test_a_block_whose_transaction_is_aborted_ends_with_its_own_error(kind, name, caplog):
    client = RateLimiter({name: concurrency(1, MINUTE)})
    with pytest.raises(GaveUp), TRANSACTIONS[kind]() as db:
        with client.acquire(name, db=db):
            with pytest.raises(Exception, match="count"):
                client.limit(name, count=-1, config=TWO, db=db)
            raise GaveUp
    assert "the end of a block failed" in caplog.text
    with ALONE["SQLAlchemy Engine"]() as db:
        assert client.check(name, db=db).remaining == 1


def test_a_block_whose_end_fails_says_so(name):
    with pytest.raises(psycopg.OperationalError), psycopg.connect(autocommit=True) as connection:
        with RateLimiter({name: concurrency(1, MINUTE)}, db=connection).acquire(name):
            connection.close()


@each_of(ASYNC_ALONE)
async def test_a_block_that_is_cancelled_releases(kind, name):
    async with ASYNC_ALONE[kind]() as db:
        client = AsyncRateLimiter({name: concurrency(1, HOUR)}, db=db)
        entered = asyncio.Event()

        async def work():
            async with client.acquire(name):
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.check(name)).remaining == 1


async def test_a_block_that_is_cancelled_again_and_again_releases_on_a_pool(name):
    """By anyio, which cancels each await, too."""
    async with ASYNC_ALONE["asyncpg Pool"]() as pool:
        client = AsyncRateLimiter({name: concurrency(1, HOUR)}, db=pool)
        entered = asyncio.Event()

        async def work():
            async with client.acquire(name):
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(work())
        await entered.wait()
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        while (await client.check(name)).remaining == 0:
            await asyncio.sleep(0.01)


# Waits.


@each_of(ALONE)
def test_a_call_waits_until_it_can_pass(kind, name):
    told = []
    with ALONE[kind]() as db:
        client = RateLimiter({name: token_bucket(1, SECOND / 4)}, db=db, on_decision=told.append)
        assert client.limit(name) and client.limit(name, wait=60 * SECOND) and client.limit(name, wait=60)
    assert [each.ok for each in told].count(False) >= 1 and [each.ok for each in told].count(True) == 3


@each_of(ASYNC_ALONE)
async def test_a_call_waits_until_it_can_pass_with_await(kind, name):
    async with ASYNC_ALONE[kind]() as db:
        client = AsyncRateLimiter({name: token_bucket(1, SECOND / 4)}, db=db)
        assert (
            await client.limit(name)
            and await client.limit(name, wait=60 * SECOND)
            and await client.limit(name, wait=60)
        )


def test_a_call_that_cannot_pass_by_then_waits_for_nothing(name, connection):
    told = []
    client = RateLimiter({name: TWO}, db=connection, on_decision=told.append)
    began = time.monotonic()
    assert client.limit(name, count=2)
    assert not client.limit(name, wait=100) and not client.limit(name, count=3, wait=10_000)
    with pytest.raises(RateLimitExceeded):
        client.limit(name, wait=100, throws=True)
    assert [each.ok for each in told] == [True, False, False, False] and time.monotonic() - began < 90


@each_of([kind for kind in TRANSACTIONS if kind != "a function"])
def test_no_call_waits_in_a_transaction(kind, name):
    with TRANSACTIONS[kind]() as db:
        client = RateLimiter({name: TWO}, db=db)
        with pytest.raises(RuntimeError, match="wait is given in a transaction"):
            client.limit(name, wait=1)
        assert client.check(name).remaining == 2


@each_of([kind for kind in ASYNC_TRANSACTIONS if kind != "an async function"])
async def test_no_call_waits_in_a_transaction_with_await(kind, name):
    async with ASYNC_TRANSACTIONS[kind]() as db:
        with pytest.raises(RuntimeError, match="wait is given in a transaction"):
            await AsyncRateLimiter({name: TWO}, db=db).limit(name, wait=1)


# Definitions.


def test_limits_that_are_defined(name, connection):
    limits = {name: TWO, f"it's {name}": fixed_window(5, DAY, timezone="UTC")}
    quoted = f"it's {name}"
    with owner() as admin:
        client = RateLimiter(limits, db=connection, defined=True)
        with pytest.raises(SetupError, match=r"is not defined in the database: call define\(\)") as raised:
            client.limit(name)
        assert raised.value.__cause__.sqlstate == "42704"
        assert client.define(db=admin) == [name, quoted] and client.define(db=admin) == []
        changed = RateLimiter({**limits, name: token_bucket(3, HOUR)}, defined=True)
        assert changed.define(db=admin) == [name]
        assert client.limit(name).remaining == 2
        assert RateLimiter([name, quoted], db=connection, defined=True).check(quoted).remaining == 5

        with pytest.raises(
            SetupError, match="is defined in the database, and the call brings a config: pass defined=True"
        ):
            RateLimiter(limits, db=connection).limit(name)
        with pytest.raises(SetupError, match="defined=True"):
            RateLimiter(limits, db=connection).limit_all([{"name": quoted}])

        undefine = "SELECT rl_undefine(%s), rl_undefine(%s)"
        admin.execute(undefine, [name, quoted])
        admin.execute(client.sql())
        assert client.define(db=admin) == []
        admin.execute(undefine, [name, quoted])
        with sa.create_engine("postgresql+psycopg://postgres@").begin() as migration:
            for statement in client.sql().splitlines():  # as Alembic's op.execute, which looks for parameters
                migration.execute(sa.text(statement))
        assert client.define(db=admin) == []
        admin.execute(undefine, [name, quoted])


async def test_limits_that_are_defined_with_await(name):
    async with ASYNC_ALONE["asyncpg Pool"]() as pool, async_engine() as of_role:
        client = AsyncRateLimiter({name: TWO}, db=pool, defined=True)
        with pytest.raises(SetupError, match=r"call define\(\)"):
            await client.limit(name)
        async with await psycopg.AsyncConnection.connect("user=postgres", autocommit=True) as admin:
            assert await client.define(db=admin) == [name]
            with pytest.raises(SetupError, match="pass defined=True"):
                await AsyncRateLimiter({name: TWO}, db=of_role).limit(name)
            await admin.execute("SELECT rl_undefine(%s)", [name])


def idle_row(name):
    """Makes a row of a limit that was reset; returns a function that counts it. Other tests may prune it, too."""
    with owner() as admin:
        client = RateLimiter({name: TWO}, db=admin)
        assert client.limit(name) and client.reset(name)

    def count():
        with owner() as admin:
            return admin.execute("SELECT count(*) FROM rateLimits WHERE name = %s", [name]).fetchone()[0]

    return count


@each_of(ALONE)
def test_idle_rows_are_pruned(kind, name):
    with ALONE[kind]() as db:
        count = idle_row(name)
        client = RateLimiter({}, db=db)
        assert isinstance(client.prune(undefined_idle=timedelta(days=365)), int) and count() == 0


def test_idle_rows_are_pruned_in_a_thread(name, connection, monkeypatch):
    count, slept = idle_row(name), []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) > 1:
            raise GaveUp

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(GaveUp):
        RateLimiter({}, db=connection).prune_every(timedelta(minutes=1))
    assert slept == [60, 60] and count() == 0


@each_of(ASYNC_ALONE)
async def test_idle_rows_are_pruned_again_and_again(kind, name, caplog):
    async with ASYNC_ALONE[kind]() as db:
        client = AsyncRateLimiter({}, db=db)
        pruning = asyncio.create_task(client.prune_every(0.01))
        for _ in range(2):
            count = idle_row(name)
            while count():
                await asyncio.sleep(0.01)
        pruning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pruning
    assert not caplog.records


def test_limits_that_come_with_the_calls_are_not_defined(limiter):
    for call in (limiter.define, limiter.sql):
        with pytest.raises(ValueError, match="defined=True"):
            call()
    with pytest.raises(ValueError, match="names without configs"):
        RateLimiter(["a"], defined=True).sql()
    for limits in ("name", ["name"]):
        with pytest.raises(TypeError, match="limits"):
            RateLimiter(limits)


@each_of(ALONE)
def test_the_schema_is_found_wherever_it_is(kind, name):
    database = f"{'file' if ON_FILE else 'adapters'}_elsewhere"
    with psycopg.connect(dbname=database, autocommit=True) as connection:
        client = RateLimiter({name: TWO}, db=connection)
        if ON_FILE:  # which can be found by its path only
            with pytest.raises(SetupError, match="pass schema=…"):
                client.limit(name)
            connection.execute("SET search_path = limits")
        assert client.limit(name, headers="ietf").headers and client.limit_all([{"name": name}], headers="ietf").ok
        assert not client.limit(name) and client.reset(name)
        connection.execute("RESET search_path")
        client = RateLimiter({name: TWO}, db=connection, schema="limits")
        assert client.limit(name) and client.reset(name)
        with pytest.raises(SetupError, match='schema "elsewhere" doesn\'t have what this call needs'):
            RateLimiter({name: TWO}, db=connection, schema="elsewhere").limit(name)
    with ALONE[kind]() as db:
        found = RateLimiter({name: TWO}, db=db)
        found._calls.place = '"elsewhere".'  # it moves
        with pytest.raises(SetupError, match="ALTER EXTENSION ratelimit UPDATE"):
            found.limit(name)
        assert found.limit(name)
    assert RateLimiter({"a": TWO}, defined=True, schema="limits").sql().startswith('SELECT "limits".rl_define(')
    with pytest.raises(ValueError, match="schema is 'a.b'"):
        RateLimiter({}, schema="a.b")


def test_the_file_is_found_in_its_schema(name):
    with psycopg.connect(autocommit=True) as connection:
        connection.execute("SET search_path = pg_catalog")
        assert RateLimiter({name: TWO}, db=connection).limit(name)


# Errors.


def test_a_database_without_the_extension(name):
    said = "has no rate limits: run CREATE EXTENSION ratelimit or, .* python -m postgres_rate_limit install"
    url = "postgresql+psycopg:///postgres"
    with psycopg.connect(dbname="postgres") as connection, sa.create_engine(url).connect() as other:
        for db in (connection, other):
            with pytest.raises(SetupError, match=said):
                RateLimiter({name: TWO}, db=db).limit(name)


async def test_a_database_without_the_extension_with_await(name):
    import asyncpg

    connection = await asyncpg.connect(database="postgres")
    with pytest.raises(SetupError, match="run CREATE EXTENSION ratelimit"):
        await AsyncRateLimiter({name: TWO}, db=connection).limit(name)
    await connection.close()


def test_a_name_that_is_unknown(name, limiter):
    for call in (limiter.limit, limiter.check, limiter.reset, limiter.acquire, limiter.hold, limiter.value):
        with pytest.raises(UnknownLimit, match=f'^there is no limit "other"; there are: "{name}". Or pass its config$'):
            call("other")
    with pytest.raises(UnknownLimit):
        limiter.limit_all([{"name": name}, {"name": "other"}])
    assert limiter.limit(f"other {name}", config=TWO).remaining == 1
    assert limiter.limit_all([{"name": f"other {name}", "config": TWO}])
    with pytest.raises(UnknownLimit, match="there are: none"):
        RateLimiter({}).limit("a")


def test_what_is_wrong_with_a_call(name, limiter):
    with pytest.raises(TypeError, match="key is of type NoneType; allowed: str, int, UUID"):
        limiter.limit(name, None)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="count is -1"):
        limiter.limit(name, count=-1)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        limiter.limit(name, count=float("nan"))
    with pytest.raises(ValueError, match="taken_at"):
        limiter.credit(name, "a", 1, taken_at=datetime(2026, 1, 1))
    with pytest.raises(ValueError, match="start"):
        fixed_window(1, DAY, start=datetime(2026, 1, 1))
    for wrong in (60, None):
        with pytest.raises(TypeError, match="a timedelta such as MINUTE"):
            token_bucket(1, wrong)
    with pytest.raises(TypeError, match="can't be in a config"):
        RateLimiter({"a": {"kind": "token bucket", "period": object()}})


async def test_what_is_no_db(name, connection):
    client, other = RateLimiter({name: TWO}), AsyncRateLimiter({name: TWO})
    with pytest.raises(TypeError, match="db is missing"):
        client.limit(name)
    with pytest.raises(TypeError, match="db is missing"):
        await other.limit(name)
    with pytest.raises(TypeError, match="db is of type int; allowed: a Connection or ConnectionPool of psycopg"):
        client.limit(name, db=7)
    with pytest.raises(TypeError, match="db is of type int; allowed: an AsyncConnection"):
        await other.limit(name, db=7)
    with pytest.raises(TypeError, match="use RateLimiter"):
        await other.limit(name, db=connection)
    async with async_engine() as made:
        with pytest.raises(TypeError, match="use AsyncRateLimiter"):
            client.limit(name, db=made)


BACKEND = Call("SELECT pg_backend_pid()", (), lambda rows: rows[0])


def test_a_lost_connection_is_the_drivers_error(name):
    told = []
    with owner() as admin:
        for kind in ("psycopg Connection with autocommit", "SQLAlchemy Connection", "Django connection"):
            with pytest.raises(Exception) as raised, {**ALONE, **TRANSACTIONS}[kind]() as db:
                client = RateLimiter({name: TWO}, db=db, on_decision=told.append)
                client.limit(name)
                (pid,) = RateLimiter({}, db=db)._run(BACKEND, None)
                admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
                client.limit(name)
            assert not isinstance(raised.value, (RateLimitExceeded, SetupError)), raised
    assert [each.ok for each in told] == [True, False] * 3
    assert all(each.error is not None for each in told[1::2])


def test_a_denial_of_the_database_is_told_from_other_errors(name):
    config = "rl_token_bucket(1, '1 hour', capacity => 5)"
    statement = f"SELECT ok FROM rl_limit('{name}', count => 2, throws => true, config => {config})"
    from django.db import connection as of_django
    from django.db import transaction

    def denial_of(run):
        with pytest.raises(Exception) as raised:
            run(statement)
            run(statement)
            run(statement)
        found = RateLimitExceeded.from_error(raised.value)
        assert found.name == name and found.retry_after == pytest.approx(3600, abs=60)
        assert found.retry_at == pytest.approx(datetime.now(timezone.utc) + HOUR, abs=timedelta(minutes=1))

    with psycopg.connect() as connection:
        denial_of(connection.execute)
    with engine() as made, made.connect() as connection:
        denial_of(lambda sql: connection.execute(sa.text(sql)))
    if not ON_FILE:  # in the form of PostgREST
        with psycopg.connect(options="-c ratelimit.error_style=pgrst") as connection:
            denial_of(connection.execute)
        with engine(connect_args={"options": "-c ratelimit.error_style=pgrst"}) as made, made.connect() as connection:
            denial_of(lambda sql: connection.execute(sa.text(sql)))
    with pytest.raises(GaveUp), transaction.atomic():
        denial_of(lambda sql: of_django.cursor().execute(sql))
        raise GaveUp
    of_django.close()

    async def asynchronous():
        async with ASYNC_ALONE["asyncpg Connection"]() as connection, async_engine() as made, made.connect() as other:
            for run in (connection.execute, lambda sql: other.execute(sa.text(sql))):
                with pytest.raises(Exception) as raised:
                    for _ in range(3):
                        await run(statement)
                assert RateLimitExceeded.from_error(raised.value).name == name
            if not ON_FILE:
                await connection.execute("SET ratelimit.error_style = pgrst")
                with pytest.raises(Exception) as raised:
                    await connection.execute(statement)
                found = RateLimitExceeded.from_error(raised.value)
                assert found.name == name and found.retry_after == pytest.approx(3600, abs=60)

    asyncio.run(asynchronous())
    assert RateLimitExceeded.from_error(ValueError()) is None
    with psycopg.connect() as connection, pytest.raises(psycopg.Error) as other:
        connection.execute("SELECT 1 / 0")
    assert RateLimitExceeded.from_error(other.value) is None
    own = RateLimitExceeded("a", 1.5)
    assert RateLimitExceeded.from_error(own) is own


def test_the_error_of_a_denial(name, limiter):
    with pytest.raises(RateLimitExceeded) as raised:
        limiter.limit(name, "ada", count=3, throws=True)
    error = raised.value
    assert (str(error), error.retry_after, error.headers) == (
        f'rate limit "{name}" exceeded: this call can never pass',
        None,
        {},
    )
    again = pickle.loads(pickle.dumps(RateLimitExceeded("a", 1.5, datetime(2027, 1, 1, tzinfo=timezone.utc))))
    assert (str(again), again.retry_after, again.headers) == (
        'rate limit "a" exceeded: retry after 1.5 s',
        1.5,
        {"Retry-After": "2"},
    )
    assert again.retry_at.utcoffset() == timedelta(0)


# What on_decision gets.


def test_on_decision(name, connection, caplog):
    told = []

    def fail(decision):
        told.append(decision)
        raise ZeroDivisionError

    names = first, slots = name, f"slots of {name}"
    client = RateLimiter({first: TWO, slots: concurrency(1, MINUTE)}, db=connection, on_decision=fail)
    caplog.set_level(logging.ERROR)
    client.limit(first, "secret", count=2)
    client.limit(first, "secret")
    client.check(first, "secret")
    client.limit_all([{"name": first, "key": "secret"}, {"name": f"other {name}", "config": TWO}])
    with client.acquire(slots, "secret"):
        pass
    with pytest.raises(psycopg.Error):
        client.limit(first, "secret", count=-1)
    with engine() as made, pytest.raises(sa.exc.DBAPIError) as raised:
        client.limit(first, "secret", count=-1, db=made)
    assert "secret" in str(raised.value) and "secret" not in str(told.pop().error)
    seen = [(each.name, each.ok) for each in told]
    assert seen == [
        (first, True),
        (first, False),
        (first, False),
        (slots, True),
        (first, False),
    ]
    assert told[1].retry_after > 0 and told[0].retry_after is None and isinstance(told[4].error, psycopg.Error)
    assert all(0 < each.seconds < 60 for each in told) and "secret" not in repr(told)
    assert caplog.text.count("on_decision failed") == 6 and "secret" not in caplog.text and names


def test_threads_share_a_client(name):
    """Each with the Django connection of its own."""
    from django.db import connection

    client, answers = RateLimiter({name: token_bucket(10, DAY)}, db=connection), []

    def take():
        answers.append(client.limit(name).ok)
        connection.close()

    threads = [threading.Thread(target=take) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count(True) == 10


def test_the_key_of_an_address_is_that_of_the_database():
    addresses = ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8:1:2:3::4", "2001:DB8::1", "::1", "::", "::1.2.3.4", "fe80::1"]
    addresses += ["64:ff9b::192.0.2.33", "1:0:0:2::3", "::1:0", "::ffff"]
    with psycopg.connect() as connection:
        for address in addresses:
            for masklen in (0, 32, 48, 64, 112, 127, 128):
                sql = "SELECT rl_address_key(%s::inet, %s)"
                assert (address_key(address, masklen),) == connection.execute(sql, [address, masklen]).fetchone()
    assert address_key("2001:db8:1:2::3") == "2001:db8:1:2::/64" and address_key("fe80::1%eth0") == "fe80::/64"
    for nothing in ("", "unix:", "10.0.0.1:80"):
        with pytest.raises(ValueError, match="address is"):
            address_key(nothing)
    for wrong in (-1, 129, 1.5, True):
        with pytest.raises(ValueError, match="masklen is"):
            address_key("::1", wrong)


def test_a_key_that_is_no_text_of_the_database(name):
    limiter = RateLimiter({name: token_bucket(1, MINUTE)}, db=lambda sql, values: pytest.fail("it was sent"))
    for call in (limiter.limit, lambda *of: limiter.limit_all([{"name": of[0], "key": of[1]}])):
        with pytest.raises(ValueError, match="^key has half a surrogate; allowed: text"):
            call(name, "a\ud800")


def test_a_call_that_is_not_awaited_is_no_answer(name):
    limiter = AsyncRateLimiter({name: concurrency(1, MINUTE)})
    for call in (limiter.acquire(name), limiter.hold(name), limiter.hold_all([{"name": name}])):
        with pytest.raises(TypeError, match="isn't awaited"):
            bool(call)
