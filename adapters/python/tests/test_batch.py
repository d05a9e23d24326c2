"""Calls of limit that share statements: which go together, and that each is answered as it would be alone."""

import asyncio
import gc
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import asyncpg
import limits.aio.strategies
import psycopg
import pytest
import sqlalchemy as sa
from conftest import ON_FILE
from limits import parse
from limits.storage import storage_from_string
from psycopg_pool import AsyncConnectionPool
from pyrate_limiter import Duration, Limiter, Rate
from sqlalchemy.ext.asyncio import create_async_engine
from test_failing import ELSEWHERE, locked, once

from postgres_rate_limit import HOUR, AsyncRateLimiter, RateLimitExceeded, SetupError, _batch, fixed_window
from postgres_rate_limit._results import innermost, sqlstate
from postgres_rate_limit.pyrate_limiter import AsyncRateLimitBucket, KeyedBuckets

MANY = fixed_window(1000, HOUR, start="first request")
FIVE = fixed_window(5, HOUR, start="first request")
SCHEMA = "ratelimit" if ON_FILE else "public"


@pytest.fixture(autouse=True)
def late(monkeypatch):
    """Says after how many seconds, or how many of the median, a statement holds up no others. In most tests: never."""

    def late(seconds, times=0):
        monkeypatch.setattr(_batch, "_LATE", seconds)
        monkeypatch.setattr(_batch, "_TIMES", times)

    late(3600)
    return late


class Seen(list):
    """The statements on a pool in their order: "limit" for rl_limit, and for rl_limit_each the number of requests."""

    def add(self, sql, values):
        if "rl_limit_each(" in sql:
            self.append(len(json.loads(next(each for each in values if isinstance(each, str) and each[0] == "["))))
        elif "rl_limit(" in sql:
            self.append("limit")


class Cursor(psycopg.AsyncCursor):
    async def execute(self, sql, values=None, **others):
        self.connection.seen.add(sql, values)
        return await super().execute(sql, values, **others)


@asynccontextmanager
async def of_psycopg(seen, database="", size=4, **options):
    async def configure(connection):
        connection.seen = seen

    kwargs = {"cursor_factory": Cursor, "autocommit": True, "dbname": database or None}
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    async with AsyncConnectionPool(
        min_size=size, max_size=size, open=False, kwargs=kwargs, configure=configure, **options
    ) as pool:
        await pool.wait()
        yield pool


@asynccontextmanager
async def of_asyncpg(seen, database="", size=4, **options):
    class Connection(asyncpg.Connection):
        async def fetch(self, sql, *values, **others):
            seen.add(sql, values)
            return await super().fetch(sql, *values, **others)

    options = {"database": database or None, "connection_class": Connection, **options}
    async with asyncpg.create_pool(min_size=size, max_size=size, **options) as pool:
        yield pool


@asynccontextmanager
async def of_sqlalchemy(seen, database="", size=4):
    engine = create_async_engine(f"postgresql+asyncpg:///{database}", pool_size=size, max_overflow=0)

    def saw(connection, cursor, sql, values, *others):
        seen.add(sql, values)

    sa.event.listen(engine.sync_engine, "before_cursor_execute", saw)
    yield engine
    await engine.dispose()


POOLS = {"psycopg": of_psycopg, "asyncpg": of_asyncpg, "sqlalchemy": of_sqlalchemy}
each_pool = pytest.mark.parametrize("made", POOLS.values(), ids=POOLS)


async def until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def left(name, key, config=MANY, database=None):
    schema = SCHEMA if database is None else "limits"
    with psycopg.connect(**({} if database is None else {"dbname": database, "user": "postgres"})) as connection:
        sql = f"SELECT remaining FROM {schema}.rl_check(%s, %s, config => %s::jsonb)"
        return connection.execute(sql, [name, key, json.dumps(as_text(config))]).fetchone()[0]


def as_text(config):
    return {field: "1 hour" if field == "period" else value for field, value in config.items()}


@asynccontextmanager
async def warm(made, name, config=MANY, **options):
    """A limiter on a pool, which has found the functions, and the statements on it since."""
    seen = Seen()
    pool_options = options.pop("pool", {})
    async with made(seen, **pool_options) as pool:
        limiter = AsyncRateLimiter({name: config}, db=pool, **options)
        await limiter.check(name)
        await asyncio.gather(*(limiter.limit(name, "warm") for _ in range(3)))
        assert seen == ["limit", 2] or options.get("batch") is False
        seen.clear()
        yield limiter, seen


@each_pool
async def test_a_call_alone_goes_at_once_and_those_that_come_meanwhile_go_together(made, name):
    async with warm(made, name, FIVE) as (limiter, seen):
        assert (await limiter.limit(name, "a")).remaining == 4
        assert (await limiter.limit(name, "a", count=2)).remaining == 2
        assert seen == ["limit", "limit"]
        seen.clear()
        calls = [limiter.limit(name, key, count=2) for key in "abcabcabc"]
        results = await asyncio.gather(*calls)
        assert seen == ["limit", 8]
    assert [result.ok for result in results] == [True, True, True, False, True, True, False, False, False]
    assert [result.remaining for result in results] == [0, 3, 3, 0, 1, 1, 0, 1, 1]
    denied = results[3]
    assert denied.limited_by == "tokens" and 0 < denied.retry_after <= 3600 and denied.retry_at is not None
    assert denied.headers.keys() == {"Retry-After"}


@each_pool
async def test_at_most_64_calls_go_in_a_statement(made, name):
    async with warm(made, name) as (limiter, seen):
        await asyncio.gather(*(limiter.limit(name, count=count % 2) for count in range(200)))
        assert sorted(map(str, seen)) == ["64", "64", "64", "7", "limit"]
        assert left(name, "") == 900


async def test_at_most_a_megabyte_goes_in_a_statement(name):
    async with warm(of_asyncpg, name) as (limiter, seen):
        config = {**MANY, "description": "x" * 400_000}
        await asyncio.gather(
            *(limiter.limit(name, str(n), config=config) for n in range(6)), return_exceptions=True
        )
        assert [each for each in seen if each != "limit"] == [2, 2] and seen[0] == "limit"


async def test_what_does_not_share(name):
    class Own(AsyncConnectionPool):
        """May have hooks."""

    async def flood(limiter, seen, **options):
        await limiter.check(name, db=options.get("db"))
        seen.clear()
        await asyncio.gather(*(limiter.limit(name, **options) for _ in range(5)))
        return seen

    limits, alone = {name: MANY}, ["limit"] * 5
    seen = Seen()
    for made in POOLS.values():
        async with made(seen) as pool:
            assert await flood(AsyncRateLimiter(limits, db=pool), seen) == ["limit", 4]
            assert await flood(AsyncRateLimiter(limits, db=pool, batch=False), seen) == alone
            assert await flood(AsyncRateLimiter(limits), seen, db=pool) == alone, "a db of the call"
            hooked = AsyncRateLimiter(limits, db=pool)
            if made is of_sqlalchemy:
                sa.event.listen(pool.sync_engine, "checkout", lambda *arguments: None)
                assert await flood(hooked, seen) == alone
    async with of_asyncpg(seen, setup=lambda connection: asyncio.sleep(0)) as pool:
        assert await flood(AsyncRateLimiter(limits, db=pool), seen) == alone
    async with Own(open=False, kwargs={"cursor_factory": Cursor}, configure=with_seen(seen)) as pool:
        assert await flood(AsyncRateLimiter(limits, db=pool), seen) == alone
    async with of_psycopg(seen) as pool, pool.connection() as connection:
        assert await flood(AsyncRateLimiter(limits, db=connection), seen) == alone


def with_seen(seen):
    async def configure(connection):
        connection.seen = seen

    return configure


@each_pool
async def test_calls_with_headers_share_and_each_has_its_own(made, name):
    def untimed(headers):
        times = ("x-ratelimit-reset", "Retry-After")
        return {each: "" if each in times else re.sub(r";t=\d+", "", text) for each, text in headers.items()}

    def ietf(limit, left, of, **more):
        return {"RateLimit": f'"{limit}";r={left}', "RateLimit-Policy": f'"{limit}";q={of};w=3600', **more}

    other, wait = f"{name}-other", {"Retry-After": ""}
    github = {"limit": "5", "remaining": "4", "used": "1", "resource": name, "reset": ""}
    told = [
        ({"key": "a", "headers": "ietf"}, ietf(name, 4, 5)),
        ({"key": "b", "headers": "github"}, {f"x-ratelimit-{each}": text for each, text in github.items()}),
        ({"key": "c", "count": 4}, {}),
        ({"name": other, "key": "a", "config": {**FIVE, "rate": 9}, "headers": "ietf"}, ietf(other, 8, 9)),
        ({"key": "a", "count": 5, "headers": "ietf"}, ietf(name, 4, 5, **wait)),
        ({"key": "c", "count": 2}, wait),
    ]
    async with warm(made, name, FIVE) as (limiter, seen):
        calls = [limiter.limit(**{"name": name, **asked}) for asked, _ in told]
        calls.append(limiter.limit("bad", config={"kind": "bad"}, headers="ietf"))
        first, *answers, bad = await asyncio.gather(limiter.limit(name), *calls, return_exceptions=True)
        assert seen == ["limit", 7, "limit"] and isinstance(bad, Exception), "what has an error goes alone"
        for (asked, headers), answer in zip(told, answers):
            assert untimed(answer.headers) == headers
            alone = await limiter.check(**{"name": name, **asked, "count": 0 if answer.ok else asked["count"]})
            assert untimed(alone.headers) == headers


async def test_headers_that_may_not_be_made_cost_the_others_nothing(name):
    """They are refused before anything is taken, of limits in memory, too, which a rollback doesn't give back."""
    config = FIVE if ON_FILE else {**FIVE, "store": "memory"}
    role = f"no_headers_{uuid4().hex[:8]}"
    with psycopg.connect(user="postgres", autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN")
        try:
            admin.execute(f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}")
            for function in ("limit", "limit_each", "check"):
                admin.execute(f"GRANT EXECUTE ON FUNCTION {SCHEMA}.rl_{function} TO {role}")
            async with warm(of_asyncpg, name, config, pool={"user": role}) as (limiter, seen):
                calls = [limiter.limit(name, key) for key in "abc"] + [limiter.limit(name, "d", headers="ietf")]
                *good, bad = await asyncio.gather(*calls, return_exceptions=True)
                assert seen == ["limit", 3, "limit", "limit", "limit"]
                assert isinstance(bad, asyncpg.InsufficientPrivilegeError)
                assert [result.remaining for result in good] == [4, 4, 4]
        finally:
            admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_requests_that_json_or_a_list_can_not_say_go_alone(name):
    async with warm(of_psycopg, name) as (limiter, seen):
        calls = [limiter.limit(name, "a") for _ in range(3)] + [limiter.limit(name, "a", count=float("nan"))]
        calls += [limiter.limit(name, "a\0"), limiter.limit("\ud800", config=MANY)]
        *good, nan, nul, half = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(result.remaining for result in good) == [997, 998, 999]
        assert isinstance(nan, psycopg.Error) and isinstance(nul, psycopg.DataError) and isinstance(half, UnicodeError)


async def test_the_error_of_a_request_is_its_own_and_the_drivers(name):
    for made in POOLS.values():
        async with warm(made, name) as (limiter, seen):
            calls = [limiter.limit(name, name), limiter.limit(name, name), limiter.limit("bad", config={"kind": "bad"})]
            calls += [limiter.limit(name, name, config=FIVE), limiter.limit(name, name, throws=True)]
            first, second, bad, other, third = await asyncio.gather(*calls, return_exceptions=True)
            assert [first.ok, second.ok, third.ok] == [True] * 3, "in the same statement"
            assert seen[:2] == ["limit", 4] and seen[2:] == ["limit"] * 2, "what has an error goes alone"
            with pytest.raises(Exception, match="invalid rate limit config") as alone:
                await limiter.limit("bad", config={"kind": "bad"})
            assert (type(bad), str(bad)) == (type(alone.value), str(alone.value))
            assert isinstance(other.remaining, float), "of one key with two configs each is answered"


async def test_a_limit_that_is_not_defined_is_explained(name):
    async with of_psycopg(Seen()) as pool:
        limiter = AsyncRateLimiter([name], defined=True, db=pool)
        errors = await asyncio.gather(*(limiter.limit(name) for _ in range(4)), return_exceptions=True)
        assert [type(error) for error in errors] == [SetupError] * 4


@each_pool
async def test_a_busy_key_holds_up_no_other(made, name, late):
    """Neither one that is in the statement under way, nor one in a shared one."""
    async with warm(made, name) as (limiter, seen):
        late(0.02, 4)
        with psycopg.connect(user="postgres") as other:
            config = json.dumps(as_text(MANY))
            other.execute(f"SELECT {SCHEMA}.rl_limit(%s, 'busy', config => %s::jsonb)", [name, config])
            busy = asyncio.gather(limiter.limit(name, "busy"))
            await until(lambda: seen)
            for n in range(3):
                results = await asyncio.gather(*(limiter.limit(name, f"stranger {k}") for k in range(5)))
                assert [result.remaining for result in results] == [999 - n] * 5
            more = asyncio.gather(*(limiter.limit(name, key) for key in ("a", "busy", "b")))
            await until(lambda: left(name, "b") == 999)
            assert not busy.done() and not more.done()
            other.commit()
        assert [result.remaining for result in [*await busy, (await more)[1]]] in ([998, 997], [997, 998])
        assert left(name, "busy") == 997


@each_pool
async def test_a_call_cancelled_before_it_is_sent_is_not_sent(made, name):
    async with warm(made, name, pool={"size": 1}) as (limiter, seen):
        with psycopg.connect(user="postgres") as other:
            config = json.dumps(as_text(MANY))
            other.execute(f"SELECT {SCHEMA}.rl_limit(%s, 'busy', config => %s::jsonb)", [name, config])
            busy = asyncio.ensure_future(limiter.limit(name, "busy"))
            await until(lambda: seen)
            waiting = [asyncio.ensure_future(limiter.limit(name, key)) for key in "abc"]
            await asyncio.sleep(0.05)
            waiting[1].cancel()
            other.commit()
        results = await asyncio.gather(busy, *waiting, return_exceptions=True)
        assert isinstance(results[2], asyncio.CancelledError) and seen == ["limit", 2]
        assert [left(name, key) for key in "abc"] == [999, 1000, 999]


@each_pool
async def test_a_call_cancelled_as_its_turn_comes_is_not_sent_and_passes_it_on(made, name):
    async with warm(made, name) as (limiter, seen):

        async def first():
            await limiter.limit(name, "a")
            second.cancel()

        calls = [asyncio.ensure_future(first()), second := asyncio.ensure_future(limiter.limit(name, "b"))]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert results[0] is None and isinstance(results[1], asyncio.CancelledError) and seen == ["limit"]
        assert (await asyncio.wait_for(limiter.limit(name, "c"), 60)).ok and left(name, "b") == 1000


@each_pool
async def test_a_cancellation_ends_its_call_and_not_the_shared_statement(made, name, late):
    seen = Seen()
    async with made(seen, database=ELSEWHERE) as pool:
        limiter = AsyncRateLimiter({name: MANY}, db=pool, schema="limits")
        await asyncio.gather(*(limiter.limit(name, "warm") for _ in range(3)))
        seen.clear()
        late(0)
        with locked():
            calls = [asyncio.ensure_future(limiter.limit(name, key)) for key in "abcd"]
            await until(lambda: 3 in seen)  # since the first is late
            calls[2].cancel()
            assert isinstance((await asyncio.gather(calls[2], return_exceptions=True))[0], asyncio.CancelledError)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [getattr(result, "ok", None) for result in results] == [True, True, None, True]
    assert [left(name, key, database=ELSEWHERE) for key in "abcd"] == [999] * 4 and seen == ["limit", 3]


@once
@each_pool
@pytest.mark.parametrize("on_error", ["closed", "open"])
async def test_the_timeout_of_a_call_ends_it_alone(made, on_error, name, late):
    """A shared statement keeps its connection until all of its calls have ended."""
    seen, told = Seen(), []
    async with made(seen, database=ELSEWHERE, size=2) as pool:
        options = {"on_error": on_error, "timeout": 1, "on_decision": told.append}
        limiter = AsyncRateLimiter({name: MANY}, db=pool, **options)
        with psycopg.connect(f"user=postgres dbname={ELSEWHERE}") as admin:
            admin.execute("SELECT pg_advisory_xact_lock(47)")  # as locked() does: others lock the table, too
            await asyncio.gather(*(limiter.limit(name, "warm") for _ in range(3)))
            seen.clear(), told.clear()
            late(0)
            admin.execute("LOCK TABLE limits.rateLimits")
            calls = [asyncio.ensure_future(limiter.limit(name, key)) for key in "abcd"]
            results = await asyncio.gather(*calls, return_exceptions=True)
            if on_error == "open":
                assert all(result.ok and result.error is not None for result in results)
            else:
                assert all(isinstance(result, Exception) for result in results)
            assert [(decision.ok, decision.error is not None) for decision in told] == [(on_error == "open", True)] * 4
            await asyncio.sleep(0.05)
            assert sorted(map(str, seen)) == ["3", "limit"], "nothing is sent again"
            (line,) = limiter._own[1].batch._lines.values()
            await until(lambda: line._out == 0)  # the connection of the shared statement is given up, too
        deadline = time.monotonic() + 60
        while True:
            (result,) = await asyncio.gather(limiter.limit(name, "e"), return_exceptions=True)
            if not isinstance(result, Exception):
                break
            assert time.monotonic() < deadline, result


@once
async def test_a_call_with_a_timeout_does_not_wait_for_those_without_that_share_its_statement(name, late):
    seen = Seen()
    async with of_asyncpg(seen, database=ELSEWHERE) as pool:
        limiter = AsyncRateLimiter({name: MANY}, db=pool)
        await asyncio.gather(*(limiter.limit(name, "warm") for _ in range(3)))
        seen.clear()
        late(0)
        with locked():
            opens = {"c": "open"}  # which has a timeout of 5 seconds
            calls = [asyncio.ensure_future(limiter.limit(name, key, on_error=opens.get(key))) for key in "abcd"]
            assert isinstance((await calls[2]).error, TimeoutError)
            assert sorted(map(str, seen)) == ["3", "limit"]
            assert [call.done() for call in calls] == [False, False, True, False]
        assert [(await calls[n]).remaining for n in (0, 1, 3)] == [999] * 3


@each_pool
async def test_denials_are_remembered_and_each_call_is_told(made, name):
    told = []
    async with warm(made, name, FIVE, on_decision=told.append, remember_denials={"at_most": 60}) as (limiter, seen):
        told.clear()
        results = await asyncio.gather(*(limiter.limit(name, "a") for _ in range(9)))
        assert [result.ok for result in results] == [True] * 5 + [False] * 4 and seen == ["limit", 8]
        assert [decision.ok for decision in told] == [True] * 5 + [False] * 4
        assert not any(decision.remembered or decision.error for decision in told)
        calls = (limiter.limit(name, "a", throws=True) for _ in range(9))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [RateLimitExceeded] * 9 and len(seen) == 2
        assert [decision.remembered for decision in told[9:]] == [True] * 9
        assert (await limiter.limit(name, "a", wait=0.001)).ok is False


async def test_a_shared_statement_sees_no_variables_of_a_caller(name):
    """Its connection is given out in an empty context."""
    tenant: ContextVar[str] = ContextVar("tenant", default="none")
    saw = []

    async def check(connection):
        saw.append(tenant.get())

    async with of_psycopg(Seen(), check=check) as pool:
        limiter = AsyncRateLimiter({name: MANY}, db=pool)
        await limiter.check(name)
        saw.clear()
        tenant.set("acme")
        await asyncio.gather(*(limiter.limit(name) for _ in range(3)))
    assert saw == ["acme", "none"]


async def test_two_event_loops_have_lines_of_their_own(name):
    pool = create_async_engine("postgresql+asyncpg://", poolclass=sa.pool.AsyncAdaptedQueuePool)
    limiter = AsyncRateLimiter({name: MANY}, db=pool)

    async def flood():
        await asyncio.gather(*(limiter.limit(name) for _ in range(5)))
        await pool.dispose()

    for _ in range(2):
        await asyncio.to_thread(asyncio.run, flood())
    assert left(name, "") == 990
    gc.collect()
    assert not limiter._own[1].batch._lines, "and a loop that has ended is not kept"


async def test_the_storage_of_limits_shares(name):
    seen = Seen()
    options = {"configure": with_seen(seen), "kwargs": {"cursor_factory": Cursor}}
    storage = storage_from_string("async+postgresql+ratelimit://", name=name, **options)
    strategy = limits.aio.strategies.FixedWindowRateLimiter(storage)
    try:
        await strategy.test(parse("5/day"), "a")
        passed = await asyncio.gather(*(strategy.hit(parse("5/day"), "a") for _ in range(10)))
    finally:
        await storage.pool.close()
    assert passed.count(True) == 5 and seen == ["limit", 9]


async def test_a_bucket_of_pyrate_limiter_shares_if_it_has_one_rate(name):
    """By try_acquire, which doesn't wait for the calls before it."""
    seen = Seen()
    async with of_psycopg(seen) as pool:
        for rates in ([Rate(5, Duration.DAY)], [Rate(5, Duration.DAY), Rate(9, Duration.WEEK)]):
            bucket = AsyncRateLimitBucket(rates, pool, name=f"{name}-{len(rates)}")
            limiter = Limiter(KeyedBuckets(bucket))
            await limiter.try_acquire("other", blocking=False)
            seen.clear()
            calls = (limiter.try_acquire("a", blocking=False) for _ in range(10))
            assert (await asyncio.gather(*calls)).count(True) == 5
            assert seen == (["limit", 9] if len(rates) == 1 else [])


# A statement that fails as a whole: in a schema in which rl_limit_each fails.


FAKES = """
CREATE SCHEMA {schema};
CREATE FUNCTION {schema}.rl_limit(name text, key text, count float8, reserve boolean, throws boolean, config jsonb)
    RETURNS {real}.rl_result LANGUAGE plpgsql AS $$
BEGIN
    IF key = 'bad' THEN RAISE 'bad' USING ERRCODE = '{code}'; END IF;
    RETURN {real}.rl_limit(name, key, count, reserve, throws, config);
END $$;
CREATE FUNCTION {schema}.rl_limit_each(requests jsonb, lock_wait interval)
    RETURNS SETOF {real}.rl_limit_all_result LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM jsonb_array_elements(requests) AS r WHERE r ->> 'key' = 'bad') THEN
        RAISE 'bad' USING ERRCODE = '{code}';
    END IF;
    RETURN QUERY SELECT * FROM {real}.rl_limit_each(requests, lock_wait);
END $$;
GRANT USAGE ON SCHEMA {schema} TO adapter
"""


@asynccontextmanager
async def failing(made, code, config="", **options):
    schema = f"fails_{uuid4().hex}"
    with psycopg.connect(user="postgres", autocommit=True) as admin:
        admin.execute(FAKES.format(schema=schema, real=SCHEMA, code=code))
        try:
            seen = Seen()
            async with made(seen) as pool:
                limiter = AsyncRateLimiter({}, db=pool, schema=schema, **options)
                await limiter.limit(schema, "warm", config=MANY)
                seen.clear()
                yield limiter, schema, seen, admin
        finally:
            admin.execute(f"DROP SCHEMA {schema} CASCADE")


@once
@each_pool
@pytest.mark.parametrize("code", ["40P01", "40001", "P0001", "23514"])
async def test_after_an_error_that_one_of_them_may_have_caused_each_goes_once_alone(made, code):
    async with failing(made, code) as (limiter, name, seen, _):
        calls = (limiter.limit(name, key, config=MANY) for key in ("a", "b", "bad", "c"))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [getattr(result, "remaining", None) for result in results] == [999, 999, None, 999]
        assert sqlstate(innermost(results[2])) == code
        assert seen == ["limit", 3, "limit", "limit", "limit"]
        await asyncio.gather(*(limiter.limit(name, key, config=MANY) for key in ("a", "b", "c")))
        assert seen[5:] == ["limit", 2], "others share on"


@once
@each_pool
@pytest.mark.parametrize("code", ["57014", "55P03", "53200", "25006", "08006"])
@pytest.mark.parametrize("on_error", ["closed", "open"])
async def test_after_a_time_out_or_an_outage_nothing_is_sent_again(made, code, on_error):
    async with failing(made, code, on_error=on_error) as (limiter, name, seen, _):
        calls = (limiter.limit(name, key, config=MANY) for key in ("a", "b", "bad", "c"))
        first, *others = await asyncio.gather(*calls, return_exceptions=True)
        assert first.remaining == 999 and seen == ["limit", 3]
        if on_error == "open":
            assert all(result.ok and result.error is not None for result in others)
        else:
            assert all(isinstance(result, Exception) for result in others)


@once
@each_pool
async def test_after_a_definition_went_before_the_headers_nothing_is_sent_again(made):
    async with failing(made, "42704", on_error="open") as (limiter, name, seen, _):
        calls = (limiter.limit(name, key, config=MANY) for key in ("a", "b", "bad", "c"))
        first, *others = await asyncio.gather(*calls, return_exceptions=True)
        assert first.remaining == 999 and seen == ["limit", 3]
        assert [sqlstate(innermost(other)) for other in others] == ["42704"] * 3


@once
async def test_at_serializable_a_serialization_failure_is_each_calls(name):
    options = {"server_settings": {"default_transaction_isolation": "serializable"}}
    async with failing(lambda seen: of_asyncpg(seen, **options), "40001") as (limiter, name, seen, _):
        calls = (limiter.limit(name, key, config=MANY) for key in ("a", "b", "bad", "c"))
        first, *others = await asyncio.gather(*calls, return_exceptions=True)
        assert first.remaining == 999 and [type(other) for other in others] == [asyncpg.SerializationError] * 3
        assert seen == ["limit", 3]


@once
@each_pool
@pytest.mark.parametrize("refused", ["0A000", "42501", "42883"])
async def test_where_the_database_refuses_all_go_alone_for_ten_minutes(made, refused, monkeypatch, caplog):
    async with failing(made, "0A000") as (limiter, name, seen, admin):
        each = f"FUNCTION {name}.rl_limit_each"
        if refused == "42501":
            admin.execute(f"REVOKE EXECUTE ON {each} FROM PUBLIC")
        elif refused == "42883":
            admin.execute(f"DROP {each}")

        async def flood(*keys):
            seen.clear()
            calls = (limiter.limit(name, key, config=MANY) for key in keys)
            return await asyncio.gather(*calls, return_exceptions=True)

        results = await flood("first", "a", "bad" if refused == "0A000" else "b", "c")
        assert len([each for each in results if not isinstance(each, Exception)]) == (3 if refused == "0A000" else 4)
        assert seen == ["limit", 3, "limit", "limit", "limit"]
        for later in (1, 599):
            monkeypatch.setattr(_batch, "time", SimpleNamespace(monotonic=lambda at=time.monotonic() + later: at))
            await flood("d", "e", "f")
            assert seen == ["limit"] * 3
        monkeypatch.setattr(_batch, "time", SimpleNamespace(monotonic=lambda at=time.monotonic() + 601: at))
        await flood("g", "h", "i")
        assert seen[:2] == ["limit", 2]
        assert not caplog.records


# Everything at once, and an account of every token.


class Worker:
    def __init__(self, folder, number, **given):
        self.file = folder / str(number)
        given |= {"file": str(self.file), "driver": ["asyncpg", "psycopg"][number % 2]}
        worker = Path(__file__).parent / "batching" / "worker.py"
        command = [sys.executable, worker, json.dumps(given)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "begun\n"

    def calls(self):
        """Name, key, count and outcome of each; no outcome: the process was killed."""
        calls = {}
        for line in self.file.read_text().splitlines():
            number, *rest = line.split(" ")
            if len(rest) == 3:
                calls[number] = [*rest, None]
            else:
                calls[number][3] = rest[0]
        return calls.values()


def disturbs(stop, transactions, disturb):
    def run():
        with psycopg.connect(user="postgres", autocommit=True) as connection:
            while not stop.is_set():
                disturb(connection)

    thread = threading.Thread(target=lambda: transactions.append(run()))
    thread.start()
    return thread


def test_nothing_is_over_nothing_is_lost_and_every_call_is_answered(name, tmp_path):
    keys = [*"abcdefgh"]
    limits = {name: {"kind": "fixed window", "start": "first request", "rate": 150, "period": "1 hour"}}
    if not ON_FILE:
        limits[f"{name}-memory"] = {**limits[name], "store": "memory"}
    limits[f"{name}-large"] = {**limits[name], "rate": 10**6}
    take = f"SELECT ok FROM {SCHEMA}.rl_limit(%s, %s, config => %s::jsonb)"
    stop, ended, taken = threading.Event(), [], Counter()

    def takes(connection, *those):
        """In one transaction; what is granted counts at its end."""
        with connection.transaction():
            granted = [
                (limit, key) for limit, key in those
                if connection.execute(take, [limit, key, json.dumps(limits[limit])]).fetchone()[0]
            ]
            if len(those) == 1:
                time.sleep(0.5)
        taken.update(granted)

    large = f"{name}-large"
    every = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'adapter' AND query ~ %s LIMIT 1"

    def terminate(connection):
        time.sleep(0.3)
        connection.execute(every, [name])

    workers = [Worker(tmp_path, number, limits=limits, keys=keys) for number in range(4)]
    disturbing = [
        disturbs(stop, ended, lambda connection: takes(connection, (large, "a"))),
        disturbs(stop, ended, lambda connection: takes(connection, (large, "h"), (large, "b"))),
        disturbs(stop, ended, terminate),
    ]
    time.sleep(2)
    workers[0].process.kill()
    workers[1].process.kill()
    time.sleep(1.5)
    stop.set()
    for each in disturbing:
        each.join()
    for worker in workers[2:]:
        worker.process.communicate("", timeout=60)
        assert worker.process.returncode == 0
    assert ended == [None] * 3, "no transaction has failed"
    calls = [call for worker in workers for call in worker.calls()]
    assert all(outcome for worker in workers[2:] for *_, outcome in worker.calls())
    assert {outcome for *_, outcome in calls} <= {"ok", "denied", "bad", "unknown", None}
    assert [outcome for limit, *_, outcome in calls if limit == "bad"].count("ok") == 0
    asked = Counter(outcome for *_, outcome in calls)
    assert asked["ok"] > 500 and asked["denied"] > 50, asked
    for limit, config in limits.items():
        for key in keys:
            remaining = left(limit, key, config)
            used = config["rate"] - remaining - taken[limit, key]
            of_key = [(int(count), outcome) for other, each, count, outcome in calls if (other, each) == (limit, key)]
            ok = sum(count for count, outcome in of_key if outcome == "ok")
            unknown = sum(count for count, outcome in of_key if outcome in ("unknown", None))
            assert 0 <= remaining and ok <= used <= ok + unknown, (limit, key, used, ok, unknown)
            denied = [count for count, outcome in of_key if outcome == "denied"]
            assert not denied or remaining < max(denied), "a denial had a reason"
