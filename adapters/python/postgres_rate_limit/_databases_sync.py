# Made from _databases_async.py by scripts/async_to_sync.py: change that one.
"""Runs statements on each driver, as a Database that is found by the type of the connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postgres_rate_limit._calls import Rows
from postgres_rate_limit._databases import (
    Database,
    Deadline,
    Kinds,
    address_of,
    bounded,
    left,
    made_of,
    named,
    of_cursor,
    others,
    psycopg_busy,
    text,
    tuples,
)


def _psycopg(connection: Any) -> Database:
    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        with bounded(connection, deadline):
            # Rows as tuples, whatever the row factory of the connection.
            with connection.cursor(row_factory=tuples()) as cursor:
                cursor.execute(of_cursor(cursor, sql), values)
                rows: Rows = cursor.fetchall()
                return rows

    return Database(run, False, lambda: psycopg_busy(connection))


def _psycopg_pool(pool: Any) -> Database:
    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        connection = pool.getconn(left(deadline))
        try:
            with bounded(connection, deadline):
                with connection:  # which commits, and leaves it open
                    rows: Rows = _psycopg(connection).run(sql, values, None)
                    return rows
        finally:
            pool.putconn(connection)

    return Database(run, True, address=lambda: address_of(pool))


def _sqlalchemy(executes: Any) -> Database:
    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        rows: Rows = (executes.execute(text(sql), named(values))).all()
        return rows

    # It begins a transaction with its first statement.
    return Database(run, False, lambda: True)


def _sqlalchemy_engine(engine: Any) -> Database:
    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Rows:
        connection = engine.connect()
        try:
            with bounded(connection.connection.driver_connection, deadline):
                rows: Rows = _sqlalchemy(connection).run(sql, values, None)
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
_SUPPORTED = (
    "a Connection or ConnectionPool of psycopg; a Connection, Engine, Session or scoped_session of SQLAlchemy; "
    "a connection of Django; a function (sql, values) that returns rows"
)


def database(db: object) -> Database:
    return made_of(_KINDS, db, _SUPPORTED, "AsyncRateLimiter")


