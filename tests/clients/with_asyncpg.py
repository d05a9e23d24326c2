"""ratelimit with asyncpg, on what setup.sql prepares: prepared statements, records, intervals and jsonb, a denial as
an error, a call that is cancelled while it waits, and 16 tasks on one key.

Connects with libpq's variables, as a role that has EXECUTE on rl_limit and rl_check.
"""

import asyncio
import json
from datetime import datetime, timedelta

import asyncpg

QUOTA = "SELECT ok FROM rl_limit('quota', $1)"


async def send_message(connection, user, body):
    async with connection.transaction():  # an exception rolls back and returns the token
        # In FROM the function runs once. The key is text, and asyncpg accepts only a str for it.
        take = "SELECT ok, retry_after, retry_at FROM rl_limit('sendMessage', $1)"
        limit = await connection.fetchrow(take, str(user))
        if limit["ok"]:
            await connection.execute("INSERT INTO messages VALUES ($1, $2)", user, body)
        return limit


async def messages(connection):
    user = await connection.fetchval("INSERT INTO users (name) VALUES ('edsger') RETURNING id")
    try:
        await send_message(connection, user, "")
        raise AssertionError("an empty message was sent")
    except asyncpg.CheckViolationError:
        pass

    # A prepared statement, whose one column is a composite value: a record in a record.
    whole = await connection.prepare("SELECT rl_limit('sendMessage', $1, count => $2) AS result")
    result = (await whole.fetchrow(str(user), 1))["result"]
    assert result["ok"] and result["remaining"] == 2 and result["capacity"] == 3, "the failed message took a token"
    assert result["retry_at"] is None and isinstance(result["reset_at"], datetime)
    denied = [await send_message(connection, user, body) for body in ["two", "three", "one too many"]][-1]
    assert not denied["ok"] and 80_000 < denied["retry_after"] <= 86_400
    # It comes back as it was, to the microsecond.
    same = "SELECT retry_at = $2 FROM rl_check('sendMessage', $1)"
    assert await connection.fetchval(same, str(user), denied["retry_at"])

    # asyncpg has no class for the SQLSTATE PT429: it raises UnknownPostgresError, which it counts as fatal.
    # The connection is as good as before.
    try:
        async with connection.transaction():
            await connection.execute("INSERT INTO messages VALUES ($1, 'one too many')", user)
            await connection.execute("SELECT rl_limit('sendMessage', $1, throws => true)", str(user))
        raise AssertionError("it passed")
    except asyncpg.PostgresError as error:
        if error.sqlstate != "PT429":
            raise
        assert type(error) is asyncpg.UnknownPostgresError and error.hint.startswith("Try again in ")
        assert 80_000_000 < json.loads(error.detail)["retryAfter"] <= 86_400_000
    assert await connection.fetchval("SELECT count(*) FROM messages WHERE author = $1", user) == 2


async def configs(connection):
    # An interval is a timedelta, jsonb its text unless a codec is set.
    build = "SELECT rl_token_bucket(rate => $1, period => $2)"
    config = await connection.fetchval(build, 5, timedelta(days=1))
    assert json.loads(config) == {"kind": "token bucket", "rate": 5, "period": 86_400_000}
    take = await connection.prepare("SELECT remaining FROM rl_limit('asyncpg', 'a', config => $1)")
    assert await take.fetchval(config) == 4
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    config = await connection.fetchval(build, 10, timedelta(seconds=60))
    assert config["period"] == 60_000
    assert await connection.fetchval("SELECT remaining FROM rl_limit('asyncpg', 'b', config => $1)", config) == 9


async def waiting(connection, other):
    # A task waits for the row that another transaction holds, and is cancelled: it takes nothing, and its
    # connection goes on.
    transaction = connection.transaction()
    await transaction.start()
    assert await connection.fetchval(QUOTA, "contended")
    task = asyncio.create_task(other.fetchval(QUOTA, "contended"))
    blocked = "SELECT cardinality(pg_blocking_pids($1))"
    while not await connection.fetchval(blocked, other.get_server_pid()):
        assert not task.done(), "it did not wait"
    task.cancel()
    try:
        await task
        raise AssertionError("it was not cancelled")
    except asyncio.CancelledError:
        pass
    assert await other.fetchval("SELECT 1") == 1
    await transaction.commit()
    assert await other.fetchval("SELECT remaining FROM rl_check('quota', 'contended')") == 99
    assert await other.fetchval(QUOTA, "contended")


async def tests(connection):
    # A test of an application is rolled back, and moves the clock: transactions within it are savepoints.
    take = "SELECT ok FROM rl_limit('sendMessage', 'tests', count => 3)"
    for _ in range(2):
        test = connection.transaction()
        await test.start()
        await connection.execute("SET LOCAL ratelimit.clock = '2027-01-01 12:00:00+00'")
        async with connection.transaction():
            assert await connection.fetchval(take)
        async with connection.transaction():
            assert not await connection.fetchval(take)
        await connection.execute("SET LOCAL ratelimit.clock = '2027-01-02 12:00:00+00'")
        async with connection.transaction():
            assert await connection.fetchval(take)
        await test.rollback()


async def take_until_denied(pool):
    async with pool.acquire() as connection:
        take = await connection.prepare(QUOTA)
        for turn in range(1_000):
            transaction = connection.transaction()
            await transaction.start()
            if not await take.fetchval("asyncpg"):
                await transaction.rollback()
                return turn - turn // 3
            await (transaction.rollback() if turn % 3 == 2 else transaction.commit())


async def main():
    async with asyncpg.create_pool(min_size=16, max_size=16) as pool:
        async with pool.acquire() as connection, pool.acquire() as other:
            await messages(connection)
            await configs(connection)
            await waiting(connection, other)
            await tests(connection)
        # 16 tasks on one key, where every third transaction rolls back: 100 pass, and no more.
        assert sum(await asyncio.gather(*(take_until_denied(pool) for _ in range(16)))) == 100


asyncio.run(main())
