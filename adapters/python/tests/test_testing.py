"""The fixtures for tests of applications, by runs of pytest: the page's program passes, and broken fixtures fail."""

import os
import re
import subprocess
import sys
from inspect import getsource
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from conftest import ON_FILE
from postgres_rate_limit import install, testing

EXAMPLE = (Path(__file__).parent / "messages.py").read_text()
PLUGIN = 'pytest_plugins = ["postgres_rate_limit.testing"]'
# Workers change the rights to one parameter, which PostgreSQL refuses at the same time ("tuple concurrently updated").
ALONE = "SELECT pg_advisory_xact_lock(hashtext('parameter'));"


class Database:
    """A database for tests, owned by a role of that name, which may set the clock."""

    def __init__(self, name):
        self.name = name
        self.superuser = psycopg.connect("user=postgres dbname=postgres", autocommit=True)
        self.create_role(name)
        self.superuser.execute(f"CREATE DATABASE {name} OWNER {name}")
        if not ON_FILE:
            self.superuser.execute(f"{ALONE} GRANT SET ON PARAMETER ratelimit.clock TO {name}")
        with self.connect(name) as connection:
            if ON_FILE:
                install(connection)
            else:
                connection.execute("CREATE EXTENSION ratelimit SCHEMA public")
                connection.execute(f"SELECT rl_define('inMemory', {IN_MEMORY})")
            connection.execute(f"SELECT rl_define('sendMessage', {OF_MESSAGES})")
            connection.execute("CREATE TABLE messages (author text, body text)")

    def create_role(self, name):
        self.superuser.execute(f"CREATE ROLE {name} LOGIN")
        self.superuser.execute(f"ALTER ROLE {name} SET search_path = public, ratelimit")

    def drop(self):
        self.superuser.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
        self.superuser.execute(f"{ALONE} DROP OWNED BY {self.name}")
        self.superuser.execute(f"DROP ROLE {self.name}")
        self.superuser.close()

    def connect(self, user):
        return psycopg.connect(dbname=self.name, user=user, autocommit=True)

    def pytest(self, folder, *arguments, user=None):
        """Runs what is in the folder; returns what it prints, with a line a test."""
        (folder / "pytest.ini").write_text("[pytest]\n")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"PGUSER": user or self.name, "PGDATABASE": self.name, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        run = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "xdist.plugin", *arguments]
        return subprocess.run(run, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True).stdout

    def left(self):
        with self.connect(self.name) as connection:
            return connection.execute("SELECT name FROM ratelimits UNION ALL SELECT body FROM messages").fetchall()


OF_MESSAGES = "rl_token_bucket(rate => 10, period => '1 minute', keyed => true)"
IN_MEMORY = "rl_token_bucket(rate => 1, period => '1 day', store => 'memory')"


@pytest.fixture(scope="module")
def database():
    database = Database(f"testing_{uuid4().hex[:8]}")
    yield database
    database.drop()


def of_each(output):
    """How often tests passed, failed and could not run, by pytest's last line."""
    return {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|error)", output.splitlines()[-1])}


def break_fixtures(old, new):
    source = getsource(testing)
    assert source.count(old) == 1, old
    return source.replace(old, new)


def test_the_program_of_the_page_passes_and_leaves_nothing(database, tmp_path):
    (tmp_path / "test_messages.py").write_text(EXAMPLE)
    output = database.pytest(tmp_path)
    assert of_each(output) == {"passed": 3}, output
    assert database.left() == []


# What an application does to its transaction, and limits in memory.
MORE = f'''
from datetime import datetime, timezone

import psycopg
import pytest
from postgres_rate_limit import RateLimiter
from sqlalchemy import StaticPool, create_engine, text
from sqlalchemy.orm import Session
from FIXTURES import *

UNDEFINED = """SELECT ok FROM rl_limit('undefined', config => {IN_MEMORY})"""


@pytest.fixture(scope="session")
def ratelimit_names():
    return ("undefined",)


@pytest.mark.parametrize("turn", (1, 2))
@pytest.mark.parametrize("take", ("SELECT ok FROM rl_limit('inMemory')", UNDEFINED), ids=("defined", "named"))
def test_memory(ratelimit_connection, take, turn):
    assert [ratelimit_connection.execute(take).fetchone() for _ in range(2)] == [(True,), (False,)]


@pytest.mark.parametrize("turn", (1, 2))
def test_rows(ratelimit_connection, turn):
    ratelimit_connection.execute("INSERT INTO messages VALUES ('ada', 'hello')")
    ratelimit_connection.commit()
    assert ratelimit_connection.execute("SELECT count(*) FROM messages").fetchone() == (1,)


def left(connection):
    return connection.execute("SELECT remaining FROM rl_check('sendMessage', 'k')").fetchone()[0]


def take(connection, count=1, throws=False):
    connection.execute("SELECT ok FROM rl_limit('sendMessage', 'k', %s, throws => %s)", [count, throws])


def test_commits_and_rollbacks(ratelimit_connection, ratelimit_clock):
    take(ratelimit_connection, 4)
    ratelimit_connection.rollback()
    assert left(ratelimit_connection) == 10
    take(ratelimit_connection, 10)
    ratelimit_connection.commit()
    ratelimit_clock.advance(seconds=12)
    ratelimit_connection.rollback()
    assert left(ratelimit_connection) == 2
    with pytest.raises(psycopg.Error):
        take(ratelimit_connection, 3, throws=True)
    ratelimit_clock.advance(seconds=6)
    ratelimit_connection.commit()  # what has failed is rolled back
    assert left(ratelimit_connection) == 3
    with pytest.raises(ZeroDivisionError), ratelimit_connection.transaction():
        take(ratelimit_connection)
        ratelimit_clock.advance(seconds=6)
        1 / 0
    assert left(ratelimit_connection) == 4
    with ratelimit_connection:  # as that of a pool
        take(ratelimit_connection)
    with pytest.raises(ZeroDivisionError), ratelimit_connection:
        take(ratelimit_connection)
        1 / 0
    ratelimit_clock.set(datetime(2027, 1, 1, 12, tzinfo=timezone.utc))
    assert left(ratelimit_connection) == 3 and ratelimit_clock.now.minute == 0
    with pytest.raises(ValueError, match="no offset"):
        ratelimit_clock.set(datetime(2027, 1, 1))


def test_transaction_commits_if_it_begins(ratelimit_connection):
    for begun in (False, True):
        if begun:
            assert left(ratelimit_connection) == 8
        with ratelimit_connection.transaction():
            take(ratelimit_connection)
            with ratelimit_connection.transaction():
                take(ratelimit_connection)
        ratelimit_connection.rollback()
    assert left(ratelimit_connection) == 8


def test_client(ratelimit_connection, ratelimit_clock):
    limiter = RateLimiter(["sendMessage"], db=ratelimit_connection, defined=True)
    assert limiter.limit("sendMessage", "k", count=10) and limiter.limit("sendMessage", "k").retry_after == 6
    ratelimit_clock.advance(seconds=6)
    assert limiter.limit("sendMessage", "k").retry_at is None


def test_sqlalchemy(ratelimit_connection, ratelimit_clock):
    engine = create_engine("postgresql+psycopg://", creator=lambda: ratelimit_connection, poolclass=StaticPool)
    taken = text("SELECT ok FROM rl_limit('sendMessage', 'k', count => 10)")
    with Session(engine) as session, session.begin():
        assert session.scalar(taken)
    with Session(engine) as session:
        assert not session.scalar(taken)
    ratelimit_clock.advance(minutes=1)
    with Session(engine) as session:
        assert session.scalar(taken)
'''
# What is broken, how, and the test that fails then; in the order in which they run.
COMMITS = "test_commits_and_rollbacks"
BROKEN = {
    "the clock isn't set": ("set_config('ratelimit.clock', %s, true)", "set_config('ratelimit.watch', %s, true)", "test_rows[1]"),
    "the clock stands": ("self.now = _with_offset(time)\n        self._connection", "_with_offset(time)\n        self._connection", COMMITS),
    "a rollback turns the clock back": ("self._begun = False\n        self.show_clock()", "self._begun = False", COMMITS),
    "a savepoint's rollback turns the clock back": ("= not begins\n            self.show_clock()", "= not begins", COMMITS),
    "a block doesn't commit": ("            if begins:\n                self.commit()\n", "", "test_transaction_commits_if_it_begins"),
    "each block commits": ("        self._begun = True\n        return", "        return", "test_transaction_commits_if_it_begins"),
    "a rollback keeps what was written": ('"ROLLBACK TO SAVEPOINT application"', '"RELEASE SAVEPOINT application; SAVEPOINT application"', COMMITS),
    "memory isn't reset": ("SELECT rl_reset_keys(name)\n", "SELECT name\n", "test_memory[defined-2]"),
    "names aren't reset": ("UNION SELECT unnest(CAST(%s AS text[]))", "WHERE CAST(%s AS text[]) IS NOT NULL", "test_memory[named-2]"),
    "tests are committed": ("        try:\n            self.rollback()", "        try:\n            super().commit()", "test_rows[2]"),
}


def test_commits_rollbacks_sqlalchemy_and_memory(database, tmp_path):
    (tmp_path / "test_more.py").write_text(MORE.replace("FIXTURES", "postgres_rate_limit.testing"))
    output = database.pytest(tmp_path, *(["-k", "not memory"] if ON_FILE else []))
    assert of_each(output) == {"passed": 6 if ON_FILE else 10}, output
    assert database.left() == []


@pytest.mark.edition("extension")
def test_broken_fixtures_are_noticed(database, tmp_path):
    for n, (old, new, _) in enumerate(BROKEN.values()):
        (tmp_path / f"broken_{n}.py").write_text(break_fixtures(old, new))
        (tmp_path / f"test_{n}.py").write_text(MORE.replace("FIXTURES", f"broken_{n}"))
    output = database.pytest(tmp_path)
    with database.connect(database.name) as connection:
        connection.execute("TRUNCATE ratelimits, messages")
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.M))
    assert [what for n, (what, (*_, test)) in enumerate(BROKEN.items()) if f"test_{n}.py::{test}" not in failed] == [], output


# Of asynchronous code, on SQLAlchemy. RUN, DRIVER and FIXTURES are replaced.
ASYNC = f'''
from datetime import datetime

import pytest
from postgres_rate_limit import AsyncRateLimiter
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from FIXTURES import *

pytestmark = RUN
engine = create_async_engine("postgresql+DRIVER://")
sessions = async_sessionmaker(engine)
limiter = AsyncRateLimiter(["sendMessage"], defined=True)
UNDEFINED = """SELECT ok FROM rl_limit('undefined', config => {IN_MEMORY})"""


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def ratelimit_names():
    return ("undefined",)


@pytest.fixture
def ratelimit_engine():
    return engine


@pytest.fixture
def bound(ratelimit_async_connection):
    sessions.configure(bind=ratelimit_async_connection, join_transaction_mode="create_savepoint")


async def run(statement):
    async with sessions.begin() as session:
        return await session.scalar(text(statement))


async def take(count=1, fails=False):
    async with sessions.begin() as session:
        result = await limiter.limit("sendMessage", "k", count=count, db=session)
        if fails:
            raise ZeroDivisionError
        return result


@pytest.mark.parametrize("turn", (1, 2))
@pytest.mark.parametrize("take", ("SELECT ok FROM rl_limit('inMemory')", UNDEFINED), ids=("defined", "named"))
async def test_memory(bound, take, turn):
    assert [await run(take) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("turn", (1, 2))
async def test_rows(bound, turn):
    assert await run("INSERT INTO messages VALUES ('ada', 'hello') RETURNING body") == "hello"
    assert await run("SELECT count(*) FROM messages") == 1


async def test_commits_rollbacks_and_the_clock(bound, ratelimit_async_clock):
    assert (await take(10)).ok
    assert (await take()).retry_after == 6
    await ratelimit_async_clock.advance(seconds=6)
    with pytest.raises(ZeroDivisionError):
        await take(fails=True)
    result = await take()
    assert result.ok and result.remaining == 0
    await ratelimit_async_clock.set(ratelimit_async_clock.now.replace(minute=2))
    assert ratelimit_async_clock.now.minute == 2 and (await take()).remaining == 9
    with pytest.raises(ValueError, match="no offset"):
        await ratelimit_async_clock.set(datetime(2027, 1, 1))
'''
RUNS = {"anyio": "pytest.mark.anyio", "asyncio": "[]"}
PLUGINS = {"anyio": ["-p", "anyio.pytest_plugin"], "asyncio": ["-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto"]}
ASYNC_BROKEN = {
    "the clock isn't set": ("set_config('ratelimit.clock', %s, true)", "set_config('ratelimit.watch', %s, true)", "test_rows[1]"),
    "the clock stands": ("await _run(self._connection, SET, self.now.isoformat(\" \"))", "pass", "test_rows[1]"),
    "memory isn't reset": ("SELECT rl_reset_keys(name)\n", "SELECT name\n", "test_memory[defined-2]"),
    "names aren't reset": ("FILL, list(names))", "FILL, [])", "test_memory[named-2]"),
    "tests are committed": ('await _run(connection, "ROLLBACK TO SAVEPOINT test")', "await connection.commit()", "test_rows[2]"),
    "connections stay open": ("await ratelimit_engine.dispose()", "pass", "test_rows[1]"),
}


def of_async(run="asyncio", driver="asyncpg", fixtures="postgres_rate_limit.testing"):
    return ASYNC.replace("= RUN", f"= {RUNS[run]}").replace("DRIVER", driver).replace("FIXTURES", fixtures)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("driver", ("asyncpg", "psycopg"))
def test_asynchronous_code(database, tmp_path, run, driver):
    (tmp_path / "test_async.py").write_text(of_async(run, driver))
    output = database.pytest(tmp_path, *PLUGINS[run], *(["-k", "not memory"] if ON_FILE else []))
    assert of_each(output) == {"passed": 3 if ON_FILE else 7}, output
    assert database.left() == []


@pytest.mark.edition("extension")
def test_broken_asynchronous_fixtures_are_noticed(database, tmp_path):
    for n, (old, new, _) in enumerate(ASYNC_BROKEN.values()):
        (tmp_path / f"broken_{n}.py").write_text(break_fixtures(old, new))
        (tmp_path / f"test_{n}.py").write_text(of_async(fixtures=f"broken_{n}"))
    output = database.pytest(tmp_path, *PLUGINS["asyncio"])
    with database.connect(database.name) as connection:
        connection.execute("TRUNCATE ratelimits, messages")
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.M))
    missed = [what for n, (what, (*_, test)) in enumerate(ASYNC_BROKEN.items()) if f"test_{n}.py::{test}" not in failed]
    assert missed == [], output


@pytest.mark.edition("extension")
def test_an_asynchronous_transaction_that_the_application_ends_is_an_error(database, tmp_path):
    ends = "async def test(ratelimit_async_connection):\n    await ratelimit_async_connection.execute(text('COMMIT'))\n"
    (tmp_path / "test_it.py").write_text(of_async().partition("@pytest.mark.parametrize")[0] + ends)
    output = database.pytest(tmp_path, *PLUGINS["asyncio"])
    assert of_each(output) == {"passed": 1, "error": 1} and "the test's transaction was ended" in output, output


@pytest.mark.edition("extension")
def test_without_an_engine_it_says_so(database, tmp_path):
    (tmp_path / "test_it.py").write_text(f"{PLUGIN}\n\nasync def test(ratelimit_async_clock):\n    pass\n")
    output = database.pytest(tmp_path, *PLUGINS["asyncio"])
    assert of_each(output) == {"error": 1} and "from a fixture ratelimit_engine" in output, output


@pytest.mark.edition("extension")
def test_a_transaction_that_the_application_ends_is_an_error(database, tmp_path):
    (tmp_path / "test_it.py").write_text(f"{PLUGIN}\n\ndef test(ratelimit_connection):\n    ratelimit_connection.execute('COMMIT')\n")
    output = database.pytest(tmp_path)
    assert of_each(output) == {"passed": 1, "error": 1} and "the test's transaction was ended" in output, output


def test_a_role_that_may_not_set_the_clock_runs_no_test(database, tmp_path):
    other = f"other_{database.name}"
    database.create_role(other)
    try:
        with database.connect("postgres") as connection:
            connection.execute(f"GRANT USAGE ON SCHEMA {'ratelimit' if ON_FILE else 'public'} TO {other}")
            connection.execute("SET search_path = public, ratelimit")
            connection.execute(f"GRANT EXECUTE ON FUNCTION rl_limit, rl_check, rl_reset_keys TO {other}")
            connection.execute(f"GRANT SELECT ON rl_config TO {other}")
        (tmp_path / "test_messages.py").write_text(EXAMPLE)
        output = database.pytest(tmp_path, user=other)
        assert of_each(output) == {"error": 3}, output
        assert f"GRANT SET ON PARAMETER ratelimit.clock TO {other}" in output, output
        (tmp_path / "test_messages.py").write_text(of_async())
        output = database.pytest(tmp_path, *PLUGINS["asyncio"], "-k", "rows", user=other)
        assert of_each(output) == {"error": 2}, output
        assert f"GRANT SET ON PARAMETER ratelimit.clock TO {other}" in output, output
    finally:
        with database.connect("postgres") as connection:
            connection.execute(f"DROP OWNED BY {other}")
        database.superuser.execute(f"DROP ROLE {other}")


# Each worker runs it. The first stays in its test until the other waits for the lock, or fails since that runs, too.
TURNS = """
from pathlib import Path

import psycopg
from FIXTURES import *


def test_turns(ratelimit_connection, worker_id):
    running, finished = Path(f"{worker_id}.running"), Path("finished")
    running.touch()
    with psycopg.connect(autocommit=True) as other:
        waits = "SELECT 1 FROM pg_locks, pg_database d WHERE locktype = 'advisory' AND NOT granted AND database = d.oid AND datname = current_database()"
        while not finished.exists() and not other.execute(waits).fetchone():
            assert list(Path().glob("*.running")) == [running]
    finished.touch()
    running.unlink()
"""


@pytest.mark.edition("extension")
@pytest.mark.parametrize("passes", [True, False])
def test_workers_on_one_database_take_turns(database, tmp_path, passes):
    turns = TURNS.replace("FIXTURES", "postgres_rate_limit.testing" if passes else "broken")
    (tmp_path / "test_turns.py").write_text(turns)
    (tmp_path / "broken.py").write_text(break_fixtures("pg_advisory_xact_lock(hashtext('ratelimit.clock'))", "1"))
    output = database.pytest(tmp_path, "-n", "2", "--dist", "each")
    assert (of_each(output) == {"passed": 2}) == passes, output


@pytest.mark.edition("extension")
def test_workers_with_a_database_each(database, tmp_path):
    conftest = (Path(__file__).parent / "workers.py").read_text().replace("app_test", database.name)
    (tmp_path / "conftest.py").write_text(conftest)
    database_is = f"assert ratelimit_connection.info.dbname == f'{database.name}_{{worker_id}}'"
    (tmp_path / "test_it.py").write_text(f"def test(ratelimit_connection, worker_id):\n    {database_is}\n")
    copies = [f"{database.name}_gw{n}" for n in range(2)]
    for copy in copies:
        database.superuser.execute(f"CREATE DATABASE {copy} TEMPLATE {database.name} OWNER {database.name}")
    try:
        output = database.pytest(tmp_path, "-n", "2", "--dist", "each")
        assert of_each(output) == {"passed": 2}, output
    finally:
        for copy in copies:
            database.superuser.execute(f"DROP DATABASE {copy} WITH (FORCE)")
