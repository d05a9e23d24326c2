# Made from _databases_async.py by scripts/async_to_sync.py: change that one.
"""Runs statements on each driver, as a Database that is found by the type of the connection."""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
    others,
    percent,
    text,
)
from postgres_rate_limit._failing import of_libpq

T = TypeVar("T")


def _psycopg(connection: Any) -> Database:
    psycopg: Any = sys.modules["psycopg"]

    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Any:
        with bounded(connection, deadline):
            # Rows as tuples, whatever the row factory of the connection.
            with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
                cursor.execute(sql if isinstance(cursor, psycopg.RawCursor) else percent(sql), values)
                return cursor.fetchall()

    def idle() -> bool:
        return bool(connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE)

    return Database(run, False, lambda: not (connection.autocommit and idle()), lambda: connection.closed or idle())


def _psycopg_pool(pool: Any) -> Database:
    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Any:
        connection = pool.getconn(left(deadline))
        try:
            with bounded(connection, deadline):
                with connection:  # which commits, and leaves it open
                    return _psycopg(connection).run(sql, values, None)
        finally:
            pool.putconn(connection)

    def address() -> Address:
        if callable(pool.conninfo) or callable(pool.kwargs):
            return None
        return of_libpq(pool.kwargs or {}, pool.conninfo or "")

    return Database(run, True, address=address)


def _sqlalchemy(executes: Any) -> Database:
    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Any:
        named = {f"p{n}": value for n, value in enumerate(values, 1)}
        return (executes.execute(text(sql), named)).all()

    # It begins a transaction with its first statement.
    return Database(run, False, lambda: True, lambda: not executes.in_transaction())


def _sqlalchemy_engine(engine: Any) -> Database:
    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Any:
        connection = engine.connect()
        try:
            with bounded(connection.connection.driver_connection, deadline):
                rows = _sqlalchemy(connection).run(sql, values, None)
                connection.commit()
                return rows
        finally:
            connection.close()

    return Database(run, True)


_KINDS: Kinds = (
    ("psycopg", "Connection", _psycopg),
    ("psycopg_pool", "ConnectionPool", _psycopg_pool),
    ("sqlalchemy", "Connection", _sqlalchemy),
    ("sqlalchemy", "Engine", _sqlalchemy_engine),
    ("sqlalchemy.orm", "Session", _sqlalchemy),
    ("sqlalchemy.orm", "scoped_session", _sqlalchemy),
    *others,
)
_DRIVERS = ("psycopg", "psycopg_pool", "asyncpg", "sqlalchemy", "django")
_SUPPORTED = (
    "a Connection or ConnectionPool of psycopg; a Connection, Engine, Session or scoped_session of SQLAlchemy; "
    "a connection of Django; a function (sql, values) that returns rows"
)


def database(db: object) -> Database:
    """Raises TypeError for anything that can't run a statement here."""
    for module, name, make in _KINDS:
        if isinstance(db, class_of(module, name)):
            return make(db)
    if any(each.__module__.partition(".")[0] in _DRIVERS for each in type(db).__mro__):
        raise TypeError(f"db is a {type(db).__name__}: use AsyncRateLimiter; allowed: {_SUPPORTED}")
    if db is None:
        raise TypeError("db is missing: pass one to the limiter, or to the call")
    if callable(db):
        query: Any = db
        return Database(lambda sql, values, _: query(percent(sql), values), False, lambda: None, lambda: False)
    raise TypeError(f"db is of type {type(db).__name__}; allowed: {_SUPPORTED}")


def find_place(on: Database, calls: Calls, deadline: Deadline, is_shared: bool = False) -> str:
    """The schema before the names of functions; found if it, or what a shared statement needs, is unknown."""
    place = calls.place
    if place is None or (is_shared and calls.lock_wait is None):
        place = calls.found(on.run(FIND, (), deadline))
    return place


def answered(on: Database, call: Call[T], place: str, deadline: Deadline) -> T:
    return call.read(on.run(call.sql.replace("@", place), call.values, deadline))


