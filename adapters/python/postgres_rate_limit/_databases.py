"""The parts that all databases share. Imports no driver: a connection can only come from a driver that the application
has imported."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Union

# A time by the monotonic clock, at which a call without an answer fails, and its connection is closed.
Deadline = Union[float, None]


class Server(NamedTuple):
    host: str
    """Its name, its address, or the folder of its socket."""
    port: int
    user: str
    sslnegotiation: str | None = None


Address = Union[tuple[Server, ...], None]
"""The servers of a connection; None: unknown."""


def class_of(module: str, name: str) -> Any:
    """A class, or one without instances if it is not imported."""
    return getattr(sys.modules.get(module), name, ())


class Database(NamedTuple):
    run: Callable[[str, Sequence[Any], Deadline], Any]
    """Runs a statement, with $1, $2, … for its values, and returns its rows; asynchronous ones are awaited."""
    apart: bool
    """Whether each call has a connection of its own, so that none is in a transaction of the caller's."""
    in_transaction: Callable[[], bool | None] = lambda: False
    """Whether a statement is in a transaction of the caller's; None: unknown."""
    is_over: Callable[[], bool] = lambda: True
    """Whether the transaction of an earlier statement has been committed or rolled back; false if unknown."""
    address: Callable[[], Address] = lambda: None
    """The server's address, for a ping; of a pool, because its errors don't have it."""
    batch: Any = None
    """The Batch of a limiter's own pool."""


Kinds = tuple[tuple[str, str, Callable[[Any], Database]], ...]


@lru_cache(maxsize=256)
def percent(sql: str) -> str:
    return re.sub(r"\$\d+", "%s", sql)


@lru_cache(maxsize=256)
def text(sql: str) -> Any:
    return sys.modules["sqlalchemy"].text(re.sub(r"\$(\d+)", r":p\1", sql))


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
                raise _late_error()("the database did not answer in time: the connection was closed")
            wanted = steps.send(ready)
    except StopIteration as end:
        return end.value


@contextmanager
def bounded(connection: Any, deadline: Deadline) -> Iterator[None]:
    """Limits all waits on the connection, psycopg's or asyncpg's, to the deadline."""
    if deadline is None:
        yield
    elif hasattr(connection, "pgconn"):  # psycopg
        wait = type(connection).wait
        connection.wait = lambda steps, *arguments, **others: wait(
            connection, until(deadline, connection, steps), *arguments, **others
        )
        try:
            yield
        finally:
            connection.__dict__.pop("wait", None)
    elif hasattr(connection, "terminate"):  # asyncpg
        seconds = max(0, deadline - time.monotonic())
        end = asyncio.get_running_loop().call_later(seconds, connection.terminate)
        try:
            yield
        finally:
            end.cancel()
    else:
        driver = type(connection).__module__
        raise TypeError(f"timeout can't bound a call on {driver}; allowed: math.inf, and the time-outs of that driver")


def _django(connection: Any) -> Database:
    def busy() -> bool:
        # get_autocommit connects.
        autocommit = connection.autocommit if connection.connection else connection.settings_dict["AUTOCOMMIT"]
        return bool(connection.in_atomic_block or not autocommit)

    def run(sql: str, values: Sequence[Any], deadline: Deadline) -> Any:
        connection.ensure_connection()
        driver = connection.connection
        try:
            with bounded(driver, deadline), connection.cursor() as cursor:
                cursor.execute(percent(sql), values)
                return cursor.fetchall()
        finally:
            if deadline is not None and driver.closed:
                connection.close()  # so that the next call makes another

    return Database(run, False, busy, lambda: not busy())


# Connections that only one of the clients has.
others: Kinds = (
    ("django.utils.connection", "ConnectionProxy", _django),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", _django),
)
others_async: Kinds = ()
