"""ratelimit.sql as the package installs it, on databases of their own."""

import os
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from postgres_rate_limit import install, install_sql

pytestmark = pytest.mark.edition("file")
README = (Path(__file__).parent.parent / "README.md").read_text()
CONFIG = '{"kind": "fixed window", "rate": 2, "period": 3600000}'


@pytest.fixture(scope="module")
def database():
    """A role that is no superuser."""
    name = f"install_{uuid4().hex}"
    with psycopg.connect("user=postgres dbname=postgres", autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
        connection.execute(f"CREATE DATABASE {name} OWNER {name}")
        yield name
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        connection.execute(f"DROP ROLE {name}")


@pytest.fixture
def connection(database):
    with psycopg.connect(f"dbname={database} user={database}", autocommit=True) as connection:
        yield connection
        for schema in schemas(connection):
            connection.execute(f"DROP SCHEMA {schema} CASCADE")


def schemas(connection):
    found = "SELECT nspname FROM pg_namespace WHERE nspname IN ('ratelimit', 'limits', 'others')"
    return sorted(name for (name,) in connection.execute(found).fetchall())


def take(connection, schema):
    """Takes one of two from a limit of this schema; what is left."""
    return connection.execute(f"SELECT remaining FROM {schema}.rl_limit('k', config => %s)", [CONFIG]).fetchone()[0]


def command(*arguments, **variables):
    """Runs python -m postgres_rate_limit; its code and outputs."""
    run = [sys.executable, "-m", "postgres_rate_limit", *arguments]
    ended = subprocess.run(run, text=True, capture_output=True, env={**os.environ, **variables})
    return ended.returncode, ended.stdout, ended.stderr


def test_the_text_is_the_file_and_for_another_schema_what_the_build_makes_of_it():
    file = files("postgres_rate_limit").joinpath("ratelimit.sql").read_text("utf-8")
    assert len(file) > 50_000
    assert install_sql() == install_sql("ratelimit") == file
    same = install_sql(schema="limits") == (Path(__file__).parents[3] / "limits" / "ratelimit.sql").read_text("utf-8")
    assert same  # without a diff of thousands of lines


WRONG = ["", "Limits", "a b", 'a"; DROP SCHEMA public; --', "a'", "pg_limits", "1st", "public", "x" * 64, "a\n", r"\g<0>"]


@pytest.mark.parametrize("schema", WRONG)
def test_a_name_that_can_be_no_schema_is_refused(schema):
    with pytest.raises(ValueError, match="schema is .*; allowed: lower-case letters"):
        install_sql(schema)
    with pytest.raises(ValueError, match="schema is"):
        install(None, schema)


def test_a_migration_installs_it_keeps_what_is_there_and_takes_it_back(connection):
    with connection.transaction(force_rollback=True):
        install(connection)
        assert schemas(connection) == ["ratelimit"]
        assert take(connection, "ratelimit") == 1
    assert schemas(connection) == []

    install(connection)
    assert take(connection, "ratelimit") == 1
    install(connection, "ratelimit")
    assert take(connection, "ratelimit") == 0  # over itself it keeps its state

    install(connection, schema="others")
    assert take(connection, "others") == 1
    connection.execute("DROP SCHEMA ratelimit CASCADE")
    assert take(connection, "others") == 0  # and needs nothing of the first

    install(connection, schema="order")
    assert take(connection, '"order"') == 1  # a word of SQL is a name, too
    connection.execute('DROP SCHEMA "order" CASCADE')


async def test_an_asynchronous_connection_runs_the_text(connection, database):
    async with await psycopg.AsyncConnection.connect(f"dbname={database} user={database}") as other:
        await other.execute(install_sql())
    assert take(connection, "ratelimit") == 1


DJANGO = """
from django.conf import settings
database = {"ENGINE": "django.db.backends.postgresql", "HOST": HOST, "PORT": PORT, "NAME": NAME, "USER": NAME}
settings.configure(DATABASES={"default": database}, DEBUG=True)
import django
from django.db import connection
from django.db.migrations import Migration, RunPython
from django.db.migrations.state import ProjectState
from postgres_rate_limit import install
django.setup()
Migration.operations = [RunPython(lambda apps, editor: install(editor.connection))]
with connection.schema_editor() as editor:
    Migration("0001", "app").apply(ProjectState(), editor)
"""
ALEMBIC = """
import sqlalchemy
from alembic.migration import MigrationContext
from alembic.operations import Operations
from postgres_rate_limit import install
address = sqlalchemy.URL.create("postgresql+psycopg", username=NAME, database=NAME, query={"host": HOST, "port": PORT})
with sqlalchemy.create_engine(address).begin() as connection:
    op = Operations(MigrationContext.configure(connection))
    install(op.get_bind().connection)
"""

ASYNC_ALEMBIC = """
import asyncio, sqlalchemy
from alembic.migration import MigrationContext
from alembic.operations import Operations
from postgres_rate_limit import install
from sqlalchemy.ext.asyncio import create_async_engine
address = sqlalchemy.URL.create("postgresql+DRIVER", username=NAME, database=NAME, query={"host": HOST, "port": PORT})
def migrate(connection):
    op = Operations(MigrationContext.configure(connection))
    install(op.get_bind().connection)
async def run(fails):
    async with create_async_engine(address).begin() as connection:
        await connection.run_sync(migrate)
        if fails:
            raise KeyError
try:
    asyncio.run(run(True))  # which rolls back
except KeyError:
    pass
async def count():
    async with create_async_engine(address).connect() as connection:
        text = sqlalchemy.text("SELECT count(*) FROM pg_namespace WHERE nspname = 'ratelimit'")
        return (await connection.execute(text)).scalar()
assert asyncio.run(count()) == 0
asyncio.run(run(False))
"""
TOOLS = {"Django": DJANGO, "Alembic": ALEMBIC}
TOOLS |= {f"Alembic on {driver}": ASYNC_ALEMBIC.replace("DRIVER", driver) for driver in ("asyncpg", "psycopg_async")}


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_a_migration_of_another_tool_installs_it(connection, database, tool):
    call = re.search(r"install\(.*\)", tool)[0]
    assert call in README
    where = f"HOST, PORT, NAME = {os.environ['PGHOST']!r}, {os.environ['PGPORT']!r}, {database!r}\n"
    subprocess.run([sys.executable, "-c", where + tool], check=True)
    assert take(connection, "ratelimit") == 1
    sources = "SELECT proname, md5(prosrc) FROM pg_proc WHERE pronamespace = 'ratelimit'::regnamespace ORDER BY 1, 2"
    got = connection.execute(sources).fetchall()
    connection.execute("DROP SCHEMA ratelimit CASCADE")
    install(connection)
    assert got == connection.execute(sources).fetchall()


def test_the_command_installs_by_variables_or_url_and_prints(connection, database):
    owner = {"PGUSER": database, "PGDATABASE": database}
    installed = f'ratelimit is installed in schema "ratelimit" of database "{database}"\n'
    assert command("install", **owner) == (0, installed, "")
    assert take(connection, "ratelimit") == 1
    url = f"postgresql://{database}@/{database}?host={os.environ['PGHOST']}&port={os.environ['PGPORT']}"
    code, _, told = command("install", url, "--schema", "limits", PGHOST="/nowhere")
    assert (code, told, schemas(connection)) == (0, "", ["limits", "ratelimit"])
    code, text, _ = command("install", "--print", "--schema=limits", PGHOST="/nowhere")
    assert (code, text == install_sql("limits")) == (0, True)


def test_the_command_says_what_is_wrong(connection, database):
    for arguments in ([], ["remove"], ["install", "a", "b"], ["install", "--force"], ["install", "--schema"]):
        code, text, told = command(*arguments)
        assert (code, text, told[:6]) == (2, "", "usage:"), arguments
    wrong = "error: schema is 'Limits'; allowed: lower-case letters, digits and _, but not public\n"
    assert command("install", "--schema", "Limits") == (1, "", wrong)
    code, text, told = command("install", PGHOST="/nowhere")
    assert (code, text, told[:7], "/nowhere" in told) == (1, "", "error: ", True)

    # Where somebody else has the schema.
    with psycopg.connect(f"dbname={database} user=postgres", autocommit=True) as superuser:
        superuser.execute("CREATE SCHEMA ratelimit")
        code, text, told = command("install", PGUSER=database, PGDATABASE=database)
        superuser.execute("DROP SCHEMA ratelimit")
    assert (code, text) == (1, "")
    first, second = told.splitlines()
    assert first.startswith("error: ") and "another role" in first and second.startswith("hint: ")
