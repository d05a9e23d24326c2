"""Fixtures of pytest for tests of an application that has its limits in PostgreSQL, in the extension or the SQL file.

    pytest_plugins = ["postgres_rate_limit.testing"]

A test gets one connection, ratelimit_connection. Everything that the application does on it is rolled back after the
test, including its commits. Its limits see ratelimit_clock, which stands still until the test moves it, and all defined
limits are full when the test begins, including those in memory. Tests on one database take turns, in whichever worker
of pytest-xdist they run.

A test of asynchronous code on SQLAlchemy gets ratelimit_async_connection, of the engine that it returns from a fixture
ratelimit_engine, and ratelimit_async_clock. Run them by pytest-asyncio in its mode auto, or by anyio. Sessions on that
connection have join_transaction_mode="create_savepoint", so that their commits are rolled back, too.

The role needs the functions that the application calls, rl_check, rl_reset_keys, SELECT on rl_config, and the right to
set the clock.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from postgres_rate_limit._results import innermost, sqlstate

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

__all__ = [
    "AsyncClock",
    "Clock",
    "Connection",
    "ratelimit_async_clock",
    "ratelimit_async_connection",
    "ratelimit_clock",
    "ratelimit_conninfo",
    "ratelimit_connection",
    "ratelimit_engine",
    "ratelimit_names",
]

START = datetime(2027, 1, 1, 12, tzinfo=timezone.utc)
NO_RIGHT = """the role {user} may not set the limiter's clock, so no test can run.
With the extension, as a superuser: GRANT SET ON PARAMETER ratelimit.clock TO {user}
With the SQL file, connect as the owner of its functions, or a member of it."""
# Statements that begin a test, in this order; %s is the value.
LOCK = "SELECT current_user, pg_advisory_xact_lock(hashtext('ratelimit.clock'))"
SET = "SELECT set_config('ratelimit.clock', %s, true)"
# The time of the call, by a full bucket. Before its first call a session lets any role set anything.
SHOW = "SELECT reset_at FROM rl_check('ratelimit.clock', config => rl_token_bucket(rate => 1, period => '1 second'))"
FILL = """SELECT rl_reset_keys(name)
FROM (SELECT name FROM rl_config UNION SELECT unnest(CAST(%s AS text[]))) AS names"""
ENDED = "the test's transaction was ended, by COMMIT or ROLLBACK as a statement or by the server: its writes may remain"


def _with_offset(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError(f"the time {time} has no offset: give it one, such as timezone.utc")
    return time


def _failed(message: str) -> BaseException:
    return pytest.fail.Exception(message, pytrace=False)


@contextmanager
def _clock_of(user: str) -> Iterator[None]:
    """Fails if the role may not set the clock."""
    try:
        yield
    except Exception as error:
        driver = innermost(error)
        if sqlstate(driver) != "42501" or "ratelimit.clock" not in str(driver):
            raise
        raise _failed(NO_RIGHT.format(user=user)) from None


def _must_be_set(time: datetime) -> None:
    if time != START:
        raise _failed(f"the limiter's clock shows {time} after it was set to {START}")


class Clock:
    """The limiter's clock: 2027-01-01 12:00:00 UTC when a test begins."""

    def __init__(self, connection: "Connection") -> None:
        self._connection, self.now = connection, START

    def set(self, time: datetime) -> None:
        """Sets it to a time with an offset; without one ValueError."""
        self.now = _with_offset(time)
        self._connection.show_clock()

    def advance(self, **span: float) -> None:
        """Moves it on by a span, in the arguments of timedelta: advance(minutes=1)."""
        self.set(self.now + timedelta(**span))


class Connection(psycopg.Connection[Any]):
    """The connection of a test. Commits and rolls back to a savepoint of the test's transaction."""

    clock: Clock
    _begun = False  # the application has begun a transaction

    def cursor(self, *args: Any, **options: Any) -> Any:
        self._begun = True
        return super().cursor(*args, **options)

    def show_clock(self) -> None:
        # After an error the rollback shows it.
        if self.info.transaction_status == TransactionStatus.INTRANS:
            super().cursor().execute(SET, [self.clock.now.isoformat(" ")])

    def commit(self) -> None:
        if self.info.transaction_status == TransactionStatus.INERROR:
            self.rollback()
        else:
            super().cursor().execute("RELEASE SAVEPOINT application; SAVEPOINT application")
            self._begun = False

    def rollback(self) -> None:
        super().cursor().execute("ROLLBACK TO SAVEPOINT application")
        self._begun = False
        self.show_clock()

    @contextmanager
    def transaction(self, savepoint_name: str | None = None, force_rollback: bool = False) -> Iterator[psycopg.Transaction]:
        begins, self._begun = not self._begun, True
        try:
            with super().transaction(savepoint_name, force_rollback) as transaction:
                yield transaction
            if begins:
                self.commit()
        finally:
            self._begun = not begins
            self.show_clock()

    def close(self) -> None:
        """Leaves it open, because the test continues."""
        if not self.closed:
            self.rollback()

    def begin(self, names: tuple[str, ...]) -> None:
        """Begins the test, alone on the database: sets the clock, fills the limits. Fails if the clock can't be set."""
        cursor = super().cursor(row_factory=tuple_row)
        ((user, _),) = cursor.execute(LOCK)
        with _clock_of(user):
            self.show_clock()
            ((time,),) = cursor.execute(SHOW)
        _must_be_set(time)
        cursor.execute(FILL, [list(names)])
        cursor.execute("SAVEPOINT application")

    def end(self) -> None:
        """Rolls back the test. Fails if the application has ended the test's transaction by a statement."""
        try:
            self.rollback()
        except psycopg.Error as error:
            raise _failed(f"{ENDED} ({error})") from None


class AsyncClock:
    """The limiter's clock on a connection of SQLAlchemy: 2027-01-01 12:00:00 UTC when a test begins. Move it between
    transactions of the application: one that rolls back takes the clock back to where it was."""

    def __init__(self, connection: "AsyncConnection") -> None:
        self._connection, self.now = connection, START

    async def set(self, time: datetime) -> None:
        """Sets it to a time with an offset; without one ValueError."""
        self.now = _with_offset(time)
        await _run(self._connection, SET, self.now.isoformat(" "))

    async def advance(self, **span: float) -> None:
        """Moves it on by a span, in the arguments of timedelta: advance(minutes=1)."""
        await self.set(self.now + timedelta(**span))


async def _run(connection: "AsyncConnection", sql: str, *values: Any) -> Any:
    """The first row of a statement."""
    from sqlalchemy import text

    found = await connection.execute(text(sql.replace("%s", ":value")), {"value": values[0]} if values else {})
    return found.first() if found.returns_rows else None


async def _begin(connection: "AsyncConnection", names: tuple[str, ...]) -> None:
    """Begins the test as Connection.begin."""
    user, _ = await _run(connection, LOCK)
    with _clock_of(user):
        await AsyncClock(connection).set(START)
        (time,) = await _run(connection, SHOW)
    _must_be_set(time)
    await _run(connection, FILL, list(names))


@pytest.fixture(scope="session")
def ratelimit_conninfo() -> str:
    """The database, for libpq. Empty: by PGHOST, PGUSER, PGDATABASE and the others. Override it for another."""
    return ""


@pytest.fixture(scope="session")
def ratelimit_names() -> tuple[str, ...]:
    """Names of limits in memory that aren't defined, because calls pass their config: they are reset, too. Override
    it."""
    return ()


@pytest.fixture
def ratelimit_connection(ratelimit_conninfo: str, ratelimit_names: tuple[str, ...]) -> Iterator[Connection]:
    """The test's connection, for the application to use."""
    connection = Connection.connect(ratelimit_conninfo)
    connection.clock = Clock(connection)
    try:
        connection.begin(ratelimit_names)
        yield connection
        connection.end()
    finally:
        psycopg.Connection.close(connection)  # which rolls back


@pytest.fixture
def ratelimit_clock(ratelimit_connection: Connection) -> Clock:
    """The clock of the test's limits."""
    return ratelimit_connection.clock


@pytest.fixture
def ratelimit_engine() -> "AsyncEngine":
    """The engine of the application, an AsyncEngine of SQLAlchemy. Override it."""
    raise _failed("there is no engine: return the application's from a fixture ratelimit_engine")


@pytest.fixture
async def ratelimit_async_connection(
    ratelimit_engine: "AsyncEngine", ratelimit_names: tuple[str, ...]
) -> "AsyncIterator[AsyncConnection]":
    """The test's connection of the engine, for sessions of the application that join its transaction by savepoints."""
    try:
        async with ratelimit_engine.connect() as connection, connection.begin() as transaction:
            await _begin(connection, ratelimit_names)
            await _run(connection, "SAVEPOINT test")
            yield connection
            try:
                await _run(connection, "ROLLBACK TO SAVEPOINT test")
            except Exception as error:
                raise _failed(f"{ENDED} ({error})") from None
            finally:
                await transaction.rollback()
    finally:
        await ratelimit_engine.dispose()  # its connections are of the event loop of this test


@pytest.fixture
def ratelimit_async_clock(ratelimit_async_connection: "AsyncConnection") -> AsyncClock:
    """The clock of the test's limits."""
    return AsyncClock(ratelimit_async_connection)
