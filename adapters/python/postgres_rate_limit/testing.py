"""Fixtures of pytest for tests of an application that has its limits in PostgreSQL, in the extension or the SQL file.

    pytest_plugins = ["postgres_rate_limit.testing"]

A test gets one connection, ratelimit_connection. Everything that the application does on it is rolled back after the
test, including its commits. Its limits see ratelimit_clock, which stands still until the test moves it, and all defined
limits are full when the test begins, including those in memory. Tests on one database take turns, in whichever worker
of pytest-xdist they run.

The role needs the functions that the application calls, rl_check, rl_reset_keys, SELECT on rl_config, and the right to
set the clock.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

__all__ = ["Clock", "Connection", "ratelimit_clock", "ratelimit_conninfo", "ratelimit_connection", "ratelimit_names"]

START = datetime(2027, 1, 1, 12, tzinfo=timezone.utc)
NO_RIGHT = """the role {user} may not set the limiter's clock, so no test can run.
With the extension, as a superuser: GRANT SET ON PARAMETER ratelimit.clock TO {user}
With the SQL file, connect as the owner of its functions, or a member of it."""


class Clock:
    """The limiter's clock: 2027-01-01 12:00:00 UTC when a test begins."""

    def __init__(self, connection: "Connection") -> None:
        self._connection, self._now = connection, START

    @property
    def now(self) -> datetime:
        return self._now

    def set(self, time: datetime) -> None:
        """Sets it to a time with an offset; without one ValueError."""
        if time.tzinfo is None:
            raise ValueError(f"the time {time} has no offset: give it one, such as timezone.utc")
        self._now = time
        self._connection.show_clock()

    def advance(self, **span: float) -> None:
        """Moves it on by a span, in the arguments of timedelta: advance(minutes=1)."""
        self.set(self._now + timedelta(**span))


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
            super().cursor().execute("SELECT set_config('ratelimit.clock', %s, true)", [self.clock.now.isoformat(" ")])

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
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('ratelimit.clock'))")
        try:
            self.show_clock()
            # The time of the call, by a full bucket. Before its first call a session lets any role set anything.
            full = "SELECT reset_at FROM rl_check('ratelimit.clock', config => rl_token_bucket(rate => 1, period => '1 second'))"
            ((time,),) = cursor.execute(full)
        except psycopg.errors.InsufficientPrivilege as error:
            if "ratelimit.clock" not in str(error):
                raise
            raise pytest.fail.Exception(NO_RIGHT.format(user=self.info.user), pytrace=False) from None
        if time != START:
            pytest.fail(f"the limiter's clock shows {time} after it was set to {START}", pytrace=False)
        cursor.execute("SELECT rl_reset_keys(name) FROM (SELECT name FROM rl_config UNION SELECT unnest(%s::text[])) AS names", [list(names)])
        cursor.execute("SAVEPOINT application")

    def end(self) -> None:
        """Rolls back the test. Fails if the application has ended the test's transaction by a statement."""
        try:
            self.rollback()
        except psycopg.Error as error:
            message = "the test's transaction was ended, by COMMIT or ROLLBACK as a statement or by the server: its writes may remain"
            pytest.fail(f"{message} ({error})", pytrace=False)


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
