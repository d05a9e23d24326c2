"""Runs statements on each driver, as a Database that is found by the type of the connection."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from postgres_rate_limit._calls import FIND, Call, Calls
from postgres_rate_limit._databases import (
    Address,
    Database,
    Deadline,
    Kinds,
    bounded,
    class_of,
    left,
    others_async,
    percent,
    text,
)
from postgres_rate_limit._failing import of_libpq

T = TypeVar("T")


def _psycopg(connection: Any) -> Database:
    psycopg: Any = sys.modules["psycopg"]

    async def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Any:
        with bounded(connection, deadline):
            # Rows as tuples, whatever the row factory of the connection.
            async with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
                await cursor.execute(sql if isinstance(cursor, psycopg.AsyncRawCursor) else percent(sql), values)
                return await cursor.fetchall()

    def idle() -> bool:
        return bool(connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE)

    return Database(run, False, lambda: not (connection.autocommit and idle()), lambda: connection.closed or idle())


def _psycopg_pool(pool: Any) -> Database:
    async def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Any:
        connection = await pool.getconn(left(deadline))
        try:
            with bounded(connection, deadline):
                async with connection:  # which commits, and leaves it open
                    return await _psycopg(connection).run(sql, values, None)
        finally:
            await pool.putconn(connection)

    def address() -> Address:
        if callable(pool.conninfo) or callable(pool.kwargs):
            return None
        return of_libpq(pool.kwargs or {}, pool.conninfo or "")

    return Database(run, True, address=address)


# begin async
def _asyncpg(connection: Any) -> Database:
    async def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Any:
        with bounded(connection, deadline):
            return await connection.fetch(sql, *values)

    def in_transaction() -> bool:
        return bool(connection.is_closed() or connection.is_in_transaction())

    def is_over() -> bool:
        try:
            return bool(connection.is_closed() or not connection.is_in_transaction())
        except sys.modules["asyncpg"].InterfaceError:
            return True  # it is its pool's again

    return Database(run, False, in_transaction, is_over)


def _asyncpg_pool(pool: Any) -> Database:
    async def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Any:
        async with pool.acquire(timeout=left(deadline)) as connection:
            return await _asyncpg(connection).run(sql, values, deadline)

    return Database(run, True)


# end async
def _sqlalchemy(executes: Any) -> Database:
    async def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Any:
        named = {f"p{n}": value for n, value in enumerate(values, 1)}
        return (await executes.execute(text(sql), named)).all()

    # It begins a transaction with its first statement.
    return Database(run, False, lambda: True, lambda: not executes.in_transaction())


def _sqlalchemy_engine(engine: Any) -> Database:
    async def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Any:
        connection = engine.connect()
        # begin async
        await asyncio.wait_for(connection.start(), left(deadline))
        # end async
        try:
            with bounded(connection.sync_connection.connection.driver_connection, deadline):
                rows = await _sqlalchemy(connection).run(sql, values, None)
                await connection.commit()
                return rows
        finally:
            await connection.close()

    return Database(run, True)


_KINDS: Kinds = (
    ("psycopg", "AsyncConnection", _psycopg),
    ("psycopg_pool", "AsyncConnectionPool", _psycopg_pool),
    # begin async
    ("asyncpg", "Connection", _asyncpg),
    ("asyncpg.pool", "PoolConnectionProxy", _asyncpg),
    ("asyncpg", "Pool", _asyncpg_pool),
    # end async
    ("sqlalchemy.ext.asyncio", "AsyncConnection", _sqlalchemy),
    ("sqlalchemy.ext.asyncio", "AsyncEngine", _sqlalchemy_engine),
    ("sqlalchemy.ext.asyncio", "AsyncSession", _sqlalchemy),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", _sqlalchemy),
    *others_async,
)
_DRIVERS = ("psycopg", "psycopg_pool", "asyncpg", "sqlalchemy", "django")
_SUPPORTED = (
    "an AsyncConnection or AsyncConnectionPool of psycopg; a Connection or Pool of asyncpg; an AsyncConnection, "
    "AsyncEngine, AsyncSession or async_scoped_session of SQLAlchemy; an async function (sql, values) that returns rows"
)


def database_async(db: object) -> Database:
    """Raises TypeError for anything that can't run a statement here."""
    for module, name, make in _KINDS:
        if isinstance(db, class_of(module, name)):
            return make(db)
    if any(each.__module__.partition(".")[0] in _DRIVERS for each in type(db).__mro__):
        raise TypeError(f"db is a {type(db).__name__}: use RateLimiter; allowed: {_SUPPORTED}")
    if db is None:
        raise TypeError("db is missing: pass one to the limiter, or to the call")
    if callable(db):
        query: Any = db
        return Database(lambda sql, values, _: query(percent(sql), values), False, lambda: None, lambda: False)
    raise TypeError(f"db is of type {type(db).__name__}; allowed: {_SUPPORTED}")


async def find_place_async(on: Database, calls: Calls, deadline: Deadline, is_shared: bool = False) -> str:
    """The schema before the names of functions; found if it, or what a shared statement needs, is unknown."""
    place = calls.place
    if place is None or (is_shared and calls.lock_wait is None):
        place = calls.found(await on.run(FIND, (), deadline))
    return place


async def answered_async(on: Database, call: Call[T], place: str, deadline: Deadline) -> T:
    # begin async
    if on.batch is not None:
        shared: T = await on.batch.limit(call, place, deadline)
        return shared
    # end async
    return call.read(await on.run(call.sql.replace("@", place), call.values, deadline))


# begin async
def shared_size(db: Any) -> Callable[[], int] | None:
    """Returns the number of connections of a pool, as a function, if calls may share statements on it: a driver's own
    pool. 0: it has a hook for each use of a connection. None: another db."""
    module = type(db).__module__.partition(".")[0]
    if module == "psycopg_pool" and isinstance(db, class_of(module, "AsyncConnectionPool")):
        return lambda: int(db.max_size)
    if module == "asyncpg" and isinstance(db, class_of(module, "Pool")):
        return lambda: 0 if db._setup else int(db.get_max_size())
    if isinstance(db, class_of("sqlalchemy.ext.asyncio", "AsyncEngine")) and hasattr(db.pool, "size"):
        events = db.sync_engine.dispatch
        return lambda: 0 if db.pool.dispatch.checkout or events.engine_connect or events.begin else int(db.pool.size())
    return None


# end async
