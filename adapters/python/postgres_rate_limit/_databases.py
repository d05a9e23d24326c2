"""Runs statements on each driver, found by the type of the connection. Imports no driver: a connection can only come
from a driver that the application has imported."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Union

from postgres_rate_limit._calls import Rows
from postgres_rate_limit._failing import Address, of_libpq

# A time by the monotonic clock, at which a call without an answer fails, and its connection is closed.
Deadline = Union[float, None]
Kinds = tuple[tuple[str, str, Callable[[Any], Any]], ...]


class Database(NamedTuple):
    run: Callable[[str, Sequence[Any], Deadline], Any]
    """Runs a statement, with $1, $2, … for its values, and returns its rows; asynchronous ones are awaited."""
    apart: bool
    """Whether each call has a connection of its own, so that none is in a transaction of the caller's."""
    in_transaction: Callable[[], bool] = lambda: False
    address: Callable[[], Address] | None = None
    """The server's address, for a ping; of a pool, because its errors don't have it."""
    told: bool = True
    """Whether in_transaction can be known."""
    batch: Any = None
    """The Batch of a limiter's own pool."""


@lru_cache(maxsize=256)
def _percent(sql: str) -> str:
    return re.sub(r"\$\d+", "%s", sql)


@lru_cache(maxsize=256)
def text(sql: str) -> Any:
    return sys.modules["sqlalchemy"].text(re.sub(r"\$(\d+)", r":p\1", sql))


def named(values: Sequence[Any]) -> dict[str, Any]:
    return {f"p{n}": value for n, value in enumerate(values, 1)}


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
def bounded(connection: Any, deadline: Deadline) -> Iterator[None]:
    """Limits all waits on the connection, psycopg's or asyncpg's, to the deadline."""
    if deadline is None:
        yield
    elif find(_PSYCOPG, connection):
        wait = type(connection).wait
        connection.wait = lambda steps, *arguments, **others: wait(
            connection, until(deadline, connection, steps), *arguments, **others
        )
        try:
            yield
        finally:
            connection.__dict__.pop("wait", None)
    elif find(_ASYNCPG, connection):
        seconds = max(0, deadline - time.monotonic())
        end = asyncio.get_running_loop().call_later(seconds, connection.terminate)
        try:
            yield
        finally:
            end.cancel()
    else:
        driver = type(connection).__module__
        raise TypeError(f"timeout can't bound a call on {driver}; allowed: math.inf, and the time-outs of that driver")


# psycopg.


def of_cursor(cursor: Any, sql: str) -> str:
    """The statement in the form of the cursor."""
    psycopg: Any = sys.modules["psycopg"]
    return sql if isinstance(cursor, (psycopg.RawCursor, psycopg.AsyncRawCursor)) else _percent(sql)


def psycopg_busy(connection: Any) -> bool:
    psycopg: Any = sys.modules["psycopg"]
    return not connection.autocommit or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE


def tuples() -> Any:
    return sys.modules["psycopg"].rows.tuple_row


def address_of(pool: Any) -> Address:
    """The address of the server of a psycopg pool, for a ping."""
    if callable(pool.conninfo) or callable(pool.kwargs):
        return None
    return of_libpq(pool.kwargs or {}, pool.conninfo or "")


def find(kinds: Kinds, db: object) -> Callable[[Any], Any] | None:
    for module, name, make in kinds:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(db, getattr(loaded, name)):
            return make
    return None


def _django(connection: Any) -> Database:
    def busy() -> bool:
        # get_autocommit connects.
        autocommit = connection.autocommit if connection.connection else connection.settings_dict["AUTOCOMMIT"]
        return bool(connection.in_atomic_block or not autocommit)

    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        connection.ensure_connection()
        driver = connection.connection
        try:
            with bounded(driver, deadline), connection.cursor() as cursor:
                cursor.execute(_percent(sql), values)
                rows: Rows = cursor.fetchall()
                return rows
        finally:
            if deadline is not None and driver.closed:
                connection.close()  # so that the next call makes another

    return Database(run, False, busy)


_PSYCOPG = (("psycopg", "Connection", bool), ("psycopg", "AsyncConnection", bool))
_ASYNCPG = (("asyncpg", "Connection", bool), ("asyncpg.pool", "PoolConnectionProxy", bool))
_SQLALCHEMY = (
    ("sqlalchemy", "Connection", bool),
    ("sqlalchemy.orm", "Session", bool),
    ("sqlalchemy.orm", "scoped_session", bool),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", bool),
    ("sqlalchemy.ext.asyncio", "AsyncSession", bool),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", bool),
)
_DRIVERS = ("psycopg", "psycopg_pool", "asyncpg", "sqlalchemy", "django")
# Connections that only one of the clients has.
others: Kinds = (
    ("django.utils.connection", "ConnectionProxy", _django),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", _django),
)
others_async: Kinds = ()


def is_over(db: Any) -> bool:
    """Whether the transaction on it has been committed or rolled back; false if unknown."""
    if find(_PSYCOPG, db):
        idle = sys.modules["psycopg"].pq.TransactionStatus.IDLE
        return bool(db.closed or db.info.transaction_status == idle)
    if find(_ASYNCPG, db):
        try:
            return bool(db.is_closed() or not db.is_in_transaction())
        except sys.modules["asyncpg"].InterfaceError:
            return True  # it is its pool's again
    if hasattr(db, "in_atomic_block"):
        return not _django(db).in_transaction()
    if find(_SQLALCHEMY, db):
        return not db.in_transaction()
    return not callable(db)  # a pool or an engine commits each call


def made_of(kinds: Kinds, db: object, supported: str, other: str) -> Database:
    """Raises TypeError for anything that can't run a statement here. other: the client of other connections."""
    if make := find(kinds, db):
        found: Database = make(db)
        return found
    if any(each.__module__.partition(".")[0] in _DRIVERS for each in type(db).__mro__):
        raise TypeError(f"db is a {type(db).__name__}: use {other}; allowed: {supported}")
    if db is None:
        raise TypeError("db is missing: pass one to the limiter, or to the call")
    if callable(db):
        query: Any = db
        return Database(lambda sql, values, _: query(_percent(sql), values), False, told=False)
    raise TypeError(f"db is of type {type(db).__name__}; allowed: {supported}")
