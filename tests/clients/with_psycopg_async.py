"""ratelimit with psycopg 3 and asyncio, as under FastAPI, on what setup.sql prepares: a pool, requests that end in an
exception, and the connection of a test.

Connects with libpq's variables, as a role that has EXECUTE on rl_limit, rl_check and rl_reset_keys, reads rl_config and
may set the clock.
"""

import asyncio
from contextlib import asynccontextmanager

import psycopg
from psycopg.rows import namedtuple_row
from psycopg_pool import AsyncConnectionPool

TAKE = "SELECT ok, remaining FROM rl_limit('sendMessage', %s::text)"
CHECK = "SELECT remaining FROM rl_check('sendMessage', %s::text)"


class HTTPException(Exception):
    """Stands for FastAPI's, which ends a request."""


# autocommit: else a connection's block is one transaction, and conn.transaction() a savepoint in it.
def pool():
    return AsyncConnectionPool(kwargs={"autocommit": True, "row_factory": namedtuple_row}, open=False)


async def send_message(pool, user, body):
    async with pool.connection() as conn, conn.transaction():  # an exception rolls back and returns the token
        take = "SELECT ok, retry_after, retry_at FROM rl_limit('sendMessage', %s::text)"
        limit = await (await conn.execute(take, [user])).fetchone()
        if limit.ok:
            await conn.execute("INSERT INTO messages VALUES (%s, %s)", [user, body])
        return limit


@asynccontextmanager  # with pytest-asyncio: @pytest_asyncio.fixture
async def database():
    """The connection of a test: defined limits are full, the clock stands still, and at the end all is rolled back."""
    conn = await psycopg.AsyncConnection.connect(row_factory=namedtuple_row)
    try:
        await conn.execute("SELECT pg_advisory_xact_lock(hashtext('ratelimit.clock'))")
        await conn.execute("SET LOCAL ratelimit.clock = '2027-01-01 12:00:00+00'")
        await conn.execute("SELECT rl_reset_keys(name) FROM (SELECT DISTINCT name FROM rl_config) AS names")
        yield conn  # conn.transaction() is a savepoint
    finally:
        await conn.rollback()
        await conn.close()


async def one(conn, sql, *values):
    return await (await conn.execute(sql, values)).fetchone()


async def messages(app, user):
    try:
        await send_message(app, user, "")
        raise AssertionError("an empty message was sent")
    except psycopg.errors.CheckViolation:
        pass
    async with app.connection() as conn:
        assert (await one(conn, CHECK, user)).remaining == 3, "the failed message took a token"
    assert [(await send_message(app, user, body)).ok for body in ["one", "two", "three", "four"]] == [True] * 3 + [False]


async def failed_requests(app, user):
    """A request counts an attempt, and ends in an exception."""

    async def attempt(connections):
        try:
            async with connections.connection() as conn:
                await conn.execute(TAKE, [user])
                raise HTTPException(401)
        except HTTPException:
            pass

    await attempt(app)
    async with app.connection() as conn:
        assert (await one(conn, CHECK, user)).remaining == 2, "with autocommit the attempt stays"
    async with AsyncConnectionPool(open=False, min_size=1) as without_autocommit:
        await attempt(without_autocommit)
    async with app.connection() as conn:
        assert (await one(conn, CHECK, user)).remaining == 2, "without, the exception rolls it back"


async def tests(user):
    for _ in range(2):
        async with database() as conn:
            for left in [2, 1, 0]:
                async with conn.transaction():
                    assert (await one(conn, TAKE, user)).remaining == left
            assert not (await one(conn, TAKE, user)).ok
            await conn.execute("SET LOCAL ratelimit.clock = '2027-01-02 12:00:00+00'")
            assert (await one(conn, CHECK, user)).remaining == 3


async def main():
    async with pool() as app:
        async with app.connection() as conn:
            insert = "INSERT INTO users (name) SELECT 'grace' FROM generate_series(1, 3) RETURNING id"
            users = [row.id for row in await (await conn.execute(insert)).fetchall()]
        await messages(app, users[0])
        await failed_requests(app, users[1])
    await tests(users[2])


asyncio.run(main())
print("ok")
