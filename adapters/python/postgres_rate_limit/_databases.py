"""How each driver runs a statement on what it was given, found by its type. Imports no driver: what isn't imported has
made nothing that could be given."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from postgres_rate_limit._calls import Rows

SUPPORTED = (
    "a Connection or ConnectionPool of psycopg; a Connection, Engine, Session or scoped_session of SQLAlchemy; "
    "a connection of Django; a function (sql, values) that returns rows"
)
ASYNC_SUPPORTED = (
    "an AsyncConnection or AsyncConnectionPool of psycopg; a Connection or Pool of asyncpg; an AsyncConnection, "
    "AsyncEngine, AsyncSession or async_scoped_session of SQLAlchemy; an async function (sql, values) that returns rows"
)


class Database(NamedTuple):
    run: Callable[[str, Sequence[Any]], Rows]
    apart: bool
    """Whether each call has a connection of its own, so that none is in a transaction of the caller's."""
    in_transaction: Callable[[], bool]


class AsyncDatabase(NamedTuple):
    run: Callable[[str, Sequence[Any]], Awaitable[Rows]]
    apart: bool
    in_transaction: Callable[[], bool]


@lru_cache(maxsize=256)
def _percent(sql: str) -> str:
    return re.sub(r"\$\d+", "%s", sql)


@lru_cache(maxsize=256)
def _text(sql: str) -> Any:
    return sys.modules["sqlalchemy"].text(re.sub(r"\$(\d+)", r":p\1", sql))


def _named(values: Sequence[Any]) -> dict[str, Any]:
    return {f"p{n}": value for n, value in enumerate(values, 1)}


def _no() -> bool:
    return False


def _yes() -> bool:
    return True


# psycopg: rows as tuples, whatever the connection's rows are.


def _of_cursor(cursor: Any, sql: str) -> str:
    """The statement as the cursor wants it."""
    psycopg: Any = sys.modules["psycopg"]
    return sql if isinstance(cursor, (psycopg.RawCursor, psycopg.AsyncRawCursor)) else _percent(sql)


def _psycopg_busy(connection: Any) -> bool:
    psycopg: Any = sys.modules["psycopg"]
    return not connection.autocommit or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE


def _psycopg(connection: Any) -> Database:
    def run(sql: str, values: Sequence[Any]) -> Rows:
        with connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row) as cursor:
            cursor.execute(_of_cursor(cursor, sql), values)
            rows: Rows = cursor.fetchall()
            return rows

    return Database(run, False, lambda: _psycopg_busy(connection))


def _psycopg_pool(pool: Any) -> Database:
    def run(sql: str, values: Sequence[Any]) -> Rows:
        with pool.connection() as connection:
            return _psycopg(connection).run(sql, values)

    return Database(run, True, _no)


def _psycopg_async(connection: Any) -> AsyncDatabase:
    async def run(sql: str, values: Sequence[Any]) -> Rows:
        async with connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row) as cursor:
            await cursor.execute(_of_cursor(cursor, sql), values)
            rows: Rows = await cursor.fetchall()
            return rows

    return AsyncDatabase(run, False, lambda: _psycopg_busy(connection))


def _psycopg_async_pool(pool: Any) -> AsyncDatabase:
    async def run(sql: str, values: Sequence[Any]) -> Rows:
        async with pool.connection() as connection:
            return await _psycopg_async(connection).run(sql, values)

    return AsyncDatabase(run, True, _no)


def _asyncpg(connection: Any) -> AsyncDatabase:
    async def run(sql: str, values: Sequence[Any]) -> Rows:
        rows: Rows = await connection.fetch(sql, *values)
        return rows

    return AsyncDatabase(run, False, connection.is_in_transaction)


def _asyncpg_pool(pool: Any) -> AsyncDatabase:
    async def run(sql: str, values: Sequence[Any]) -> Rows:
        rows: Rows = await pool.fetch(sql, *values)
        return rows

    return AsyncDatabase(run, True, _no)


# SQLAlchemy, of which a connection or session begins a transaction with its first statement.


def _sqlalchemy(executes: Any) -> Database:
    def run(sql: str, values: Sequence[Any]) -> Rows:
        rows: Rows = executes.execute(_text(sql), _named(values)).all()
        return rows

    return Database(run, False, _yes)


def _sqlalchemy_engine(engine: Any) -> Database:
    def run(sql: str, values: Sequence[Any]) -> Rows:
        with engine.begin() as connection:
            return _sqlalchemy(connection).run(sql, values)

    return Database(run, True, _no)


def _sqlalchemy_async(executes: Any) -> AsyncDatabase:
    async def run(sql: str, values: Sequence[Any]) -> Rows:
        rows: Rows = (await executes.execute(_text(sql), _named(values))).all()
        return rows

    return AsyncDatabase(run, False, _yes)


def _sqlalchemy_async_engine(engine: Any) -> AsyncDatabase:
    async def run(sql: str, values: Sequence[Any]) -> Rows:
        async with engine.begin() as connection:
            return await _sqlalchemy_async(connection).run(sql, values)

    return AsyncDatabase(run, True, _no)


def _django(connection: Any) -> Database:
    def run(sql: str, values: Sequence[Any]) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(_percent(sql), values)
            rows: Rows = cursor.fetchall()
            return rows

    return Database(run, False, lambda: connection.in_atomic_block or not connection.get_autocommit())


_SYNC: tuple[tuple[str, str, Callable[[Any], Database]], ...] = (
    ("psycopg", "Connection", _psycopg),
    ("psycopg_pool", "ConnectionPool", _psycopg_pool),
    ("sqlalchemy", "Connection", _sqlalchemy),
    ("sqlalchemy", "Engine", _sqlalchemy_engine),
    ("sqlalchemy.orm", "Session", _sqlalchemy),
    ("sqlalchemy.orm", "scoped_session", _sqlalchemy),
    ("django.utils.connection", "ConnectionProxy", _django),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", _django),
)
_ASYNC: tuple[tuple[str, str, Callable[[Any], AsyncDatabase]], ...] = (
    ("psycopg", "AsyncConnection", _psycopg_async),
    ("psycopg_pool", "AsyncConnectionPool", _psycopg_async_pool),
    ("asyncpg", "Connection", _asyncpg),
    ("asyncpg.pool", "PoolConnectionProxy", _asyncpg),
    ("asyncpg", "Pool", _asyncpg_pool),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", _sqlalchemy_async),
    ("sqlalchemy.ext.asyncio", "AsyncEngine", _sqlalchemy_async_engine),
    ("sqlalchemy.ext.asyncio", "AsyncSession", _sqlalchemy_async),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", _sqlalchemy_async),
)


def _find(kinds: Sequence[tuple[str, str, Callable[[Any], Any]]], db: object) -> Callable[[Any], Any] | None:
    for module, name, make in kinds:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(db, getattr(loaded, name)):
            return make
    return None


def database(db: object) -> Database:
    """Raises TypeError for what nothing here can run a statement on."""
    if make := _find(_SYNC, db):
        found: Database = make(db)
        return found
    if _find(_ASYNC, db):
        raise TypeError(f"db is an asynchronous {type(db).__name__}: use AsyncRateLimiter")
    if db is None:
        raise TypeError("db is missing: pass one to the limiter, or to the call")
    if callable(db):
        query: Any = db
        return Database(lambda sql, values: query(_percent(sql), values), False, _no)
    raise TypeError(f"db is of type {type(db).__name__}; allowed: {SUPPORTED}")


def async_database(db: object) -> AsyncDatabase:
    """Raises TypeError for what nothing here can run a statement on."""
    if make := _find(_ASYNC, db):
        found: AsyncDatabase = make(db)
        return found
    if _find(_SYNC, db):
        raise TypeError(f"db is a {type(db).__name__} that is not asynchronous: use RateLimiter")
    if db is None:
        raise TypeError("db is missing: pass one to the limiter, or to the call")
    if callable(db):
        query: Any = db
        return AsyncDatabase(lambda sql, values: query(_percent(sql), values), False, _no)
    raise TypeError(f"db is of type {type(db).__name__}; allowed: {ASYNC_SUPPORTED}")
