"""Runs statements on each driver, found by the type of the connection. Imports no driver: a connection can only come
from a driver that the application has imported."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Union

from postgres_rate_limit._calls import Rows
from postgres_rate_limit._failing import Address, of_libpq

SUPPORTED = (
    "a Connection or ConnectionPool of psycopg; a Connection, Engine, Session or scoped_session of SQLAlchemy; "
    "a connection of Django; a function (sql, values) that returns rows"
)
ASYNC_SUPPORTED = (
    "an AsyncConnection or AsyncConnectionPool of psycopg; a Connection or Pool of asyncpg; an AsyncConnection, "
    "AsyncEngine, AsyncSession or async_scoped_session of SQLAlchemy; an async function (sql, values) that returns rows"
)


# A time by the monotonic clock, at which a call without an answer fails, and its connection is closed.
Deadline = Union[float, None]


class Database(NamedTuple):
    run: Callable[[str, Sequence[Any], Deadline], Rows]
    apart: bool
    """Whether each call has a connection of its own, so that none is in a transaction of the caller's."""
    in_transaction: Callable[[], bool]
    address: Callable[[], Address] | None = None
    """The server's address, for a ping; of a pool, because its errors don't have it."""
    told: bool = True
    """Whether in_transaction can be known."""


class AsyncDatabase(NamedTuple):
    run: Callable[[str, Sequence[Any], Deadline], Awaitable[Rows]]
    apart: bool
    in_transaction: Callable[[], bool]
    address: Callable[[], Address] | None = None
    told: bool = True
    batch: Any = None
    """The Batch of a limiter's own pool."""


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


# Deadlines.


def left(deadline: Deadline) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.001)


@lru_cache(maxsize=1)
def _late_error() -> type[Exception]:
    """An error of the driver, and a time-out."""
    return type("LateError", (sys.modules["psycopg"].OperationalError, TimeoutError), {})


def until(deadline: float, connection: Any, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """The steps of psycopg on a connection, one by one as the server answers; after the deadline it is closed."""
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                connection.pgconn.finish()
                late = "the database did not answer in time: the connection was closed"
                raise _late_error()(late)
            wanted = steps.send(ready)
    except StopIteration as end:
        return end.value


@contextmanager
def _bounded(connection: Any, deadline: Deadline) -> Iterator[None]:
    """Limits all waits on the connection, psycopg's or asyncpg's, to the deadline."""
    if deadline is None:
        yield
    elif _find(_PSYCOPG, connection):
        wait = type(connection).wait
        connection.wait = lambda steps, *arguments, **others: wait(
            connection, until(deadline, connection, steps), *arguments, **others
        )
        try:
            yield
        finally:
            connection.__dict__.pop("wait", None)
    elif _find(_ASYNCPG, connection):
        seconds = max(0, deadline - time.monotonic())
        end = asyncio.get_running_loop().call_later(seconds, connection.terminate)
        try:
            yield
        finally:
            end.cancel()
    else:
        driver = type(connection).__module__
        raise TypeError(f"timeout can't bound a call on {driver}; allowed: math.inf, and the time-outs of that driver")


# psycopg: rows as tuples, whatever the row factory of the connection.


def _of_cursor(cursor: Any, sql: str) -> str:
    """The statement in the form of the cursor."""
    psycopg: Any = sys.modules["psycopg"]
    return sql if isinstance(cursor, (psycopg.RawCursor, psycopg.AsyncRawCursor)) else _percent(sql)


def _psycopg_busy(connection: Any) -> bool:
    psycopg: Any = sys.modules["psycopg"]
    return not connection.autocommit or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE


def _psycopg(connection: Any) -> Database:
    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        with _bounded(connection, deadline), connection.cursor(row_factory=_tuples()) as cursor:
            cursor.execute(_of_cursor(cursor, sql), values)
            rows: Rows = cursor.fetchall()
            return rows

    return Database(run, False, lambda: _psycopg_busy(connection))


def _tuples() -> Any:
    return sys.modules["psycopg"].rows.tuple_row


def address_of(pool: Any) -> Address:
    """The address of the server of a psycopg pool, for a ping."""
    if callable(pool.conninfo) or callable(pool.kwargs):
        return None
    return of_libpq(pool.kwargs or {}, pool.conninfo or "")


def _psycopg_pool(pool: Any) -> Database:
    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        connection = pool.getconn(left(deadline))
        try:
            with _bounded(connection, deadline), connection:  # which commits, and leaves it open
                return _psycopg(connection).run(sql, values, None)
        finally:
            pool.putconn(connection)

    return Database(run, True, _no, lambda: address_of(pool))


def _psycopg_async(connection: Any) -> AsyncDatabase:
    async def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        with _bounded(connection, deadline):
            async with connection.cursor(row_factory=_tuples()) as cursor:
                await cursor.execute(_of_cursor(cursor, sql), values)
                rows: Rows = await cursor.fetchall()
                return rows

    return AsyncDatabase(run, False, lambda: _psycopg_busy(connection))


def _psycopg_async_pool(pool: Any) -> AsyncDatabase:
    async def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        connection = await pool.getconn(left(deadline))
        try:
            with _bounded(connection, deadline):
                async with connection:
                    return await _psycopg_async(connection).run(sql, values, None)
        finally:
            await pool.putconn(connection)

    return AsyncDatabase(run, True, _no, lambda: address_of(pool))


def _asyncpg(connection: Any) -> AsyncDatabase:
    async def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        with _bounded(connection, deadline):
            rows: Rows = await connection.fetch(sql, *values)
            return rows

    return AsyncDatabase(run, False, lambda: connection.is_closed() or connection.is_in_transaction())


def _asyncpg_pool(pool: Any) -> AsyncDatabase:
    async def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        async with pool.acquire(timeout=left(deadline)) as connection:
            return await _asyncpg(connection).run(sql, values, deadline)

    return AsyncDatabase(run, True, _no)


# SQLAlchemy: a connection or session begins a transaction with its first statement.


def _sqlalchemy(executes: Any) -> Database:
    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        rows: Rows = executes.execute(_text(sql), _named(values)).all()
        return rows

    return Database(run, False, _yes)


def _sqlalchemy_engine(engine: Any) -> Database:
    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        with engine.connect() as connection, _bounded(connection.connection.driver_connection, deadline):
            rows = _sqlalchemy(connection).run(sql, values, None)
            connection.commit()
            return rows

    return Database(run, True, _no)


def _sqlalchemy_async(executes: Any) -> AsyncDatabase:
    async def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        rows: Rows = (await executes.execute(_text(sql), _named(values))).all()
        return rows

    return AsyncDatabase(run, False, _yes)


def _sqlalchemy_async_engine(engine: Any) -> AsyncDatabase:
    async def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        connection = engine.connect()
        await asyncio.wait_for(connection.start(), left(deadline))
        try:
            with _bounded((await connection.get_raw_connection()).driver_connection, deadline):
                rows = await _sqlalchemy_async(connection).run(sql, values, None)
                await connection.commit()
                return rows
        finally:
            await connection.close()

    return AsyncDatabase(run, True, _no)


def _django(connection: Any) -> Database:
    def busy() -> bool:
        # get_autocommit connects.
        autocommit = connection.autocommit if connection.connection else connection.settings_dict["AUTOCOMMIT"]
        return bool(connection.in_atomic_block or not autocommit)

    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        connection.ensure_connection()
        driver = connection.connection
        try:
            with _bounded(driver, deadline), connection.cursor() as cursor:
                cursor.execute(_percent(sql), values)
                rows: Rows = cursor.fetchall()
                return rows
        finally:
            if deadline is not None and driver.closed:
                connection.close()  # so that the next call makes another

    return Database(run, False, busy)


_PSYCOPG = (("psycopg", "Connection", bool), ("psycopg", "AsyncConnection", bool))
_ASYNCPG = (("asyncpg", "Connection", bool), ("asyncpg.pool", "PoolConnectionProxy", bool))
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


def shared_size(db: Any) -> Callable[[], int] | None:
    """Returns the number of connections of a pool, as a function, if calls may share statements on it: a driver's own
    pool. 0: it has a hook for each use of a connection. None: another db."""
    make, module = _find(_ASYNC, db), type(db).__module__.partition(".")[0]
    if make is _psycopg_async_pool and module == "psycopg_pool":
        return lambda: int(db.max_size)
    if make is _asyncpg_pool and module == "asyncpg":
        return lambda: 0 if db._setup else int(db.get_max_size())
    if make is _sqlalchemy_async_engine and hasattr(db.pool, "size"):
        pool, events = db.pool, db.sync_engine.dispatch
        return lambda: 0 if pool.dispatch.checkout or events.engine_connect or events.begin else int(pool.size())
    return None


def is_over(db: Any) -> bool:
    """Whether the transaction on it has been committed or rolled back; false if unknown."""
    if _find(_PSYCOPG, db):
        idle = sys.modules["psycopg"].pq.TransactionStatus.IDLE
        return bool(db.closed or db.info.transaction_status == idle)
    if _find(_ASYNCPG, db):
        try:
            return bool(db.is_closed() or not db.is_in_transaction())
        except sys.modules["asyncpg"].InterfaceError:
            return True  # it is its pool's again
    if hasattr(db, "in_atomic_block"):
        return not _django(db).in_transaction()
    made = _find(_SYNC, db) or _find(_ASYNC, db)
    if made in (_sqlalchemy, _sqlalchemy_async):
        return not db.in_transaction()
    return made is not None  # it commits each call


def _find(kinds: Sequence[tuple[str, str, Callable[[Any], Any]]], db: object) -> Callable[[Any], Any] | None:
    for module, name, make in kinds:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(db, getattr(loaded, name)):
            return make
    return None


def database(db: object) -> Database:
    """Raises TypeError for anything that can't run a statement here."""
    if make := _find(_SYNC, db):
        found: Database = make(db)
        return found
    if _find(_ASYNC, db):
        raise TypeError(f"db is an asynchronous {type(db).__name__}: use AsyncRateLimiter")
    if db is None:
        raise TypeError("db is missing: pass one to the limiter, or to the call")
    if callable(db):
        query: Any = db
        return Database(lambda sql, values, _: query(_percent(sql), values), False, _no, told=False)
    raise TypeError(f"db is of type {type(db).__name__}; allowed: {SUPPORTED}")


def database_async(db: object) -> AsyncDatabase:
    """Raises TypeError for anything that can't run a statement here."""
    if make := _find(_ASYNC, db):
        found: AsyncDatabase = make(db)
        return found
    if _find(_SYNC, db):
        raise TypeError(f"db is a {type(db).__name__} that is not asynchronous: use RateLimiter")
    if db is None:
        raise TypeError("db is missing: pass one to the limiter, or to the call")
    if callable(db):
        query: Any = db
        return AsyncDatabase(lambda sql, values, _: query(_percent(sql), values), False, _no, told=False)
    raise TypeError(f"db is of type {type(db).__name__}; allowed: {ASYNC_SUPPORTED}")
