"""What the client's tests run on: each thing that may be a db, by its name, with a transaction on it if it has one."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager

import asyncpg
import django
import psycopg
import sqlalchemy as sa
from django.conf import settings
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

DJANGO = {
    "ENGINE": "django.db.backends.postgresql",
    "HOST": os.environ.get("PGHOST"),
    "PORT": os.environ.get("PGPORT"),
    "USER": os.environ.get("PGUSER"),
    "NAME": os.environ.get("PGDATABASE"),
}
settings.configure(
    DATABASES={"default": DJANGO, "limits": {**DJANGO}},
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    REST_FRAMEWORK={"UNAUTHENTICATED_USER": None, "DEFAULT_AUTHENTICATION_CLASSES": []},
)
django.setup()
urlpatterns = []  # the tests fill it


def get_from_django(view, times=1, threads=1, **headers):
    """The answers to requests, as a server gets them: in threads that keep their connections for them."""
    from django.db import close_old_connections, connections
    from django.test import Client
    from django.urls import clear_url_caches, path

    urlpatterns[:] = [path("", view)]
    clear_url_caches()

    def get(_):
        close_old_connections()
        try:
            return Client(raise_request_exception=False).get("/", headers=headers)
        finally:
            close_old_connections() if threads == 1 else connections.close_all()

    if threads == 1:
        return [get(each) for each in range(times)]
    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(get, range(times)))


def codes(answers):
    return [answer.status_code for answer in answers]


class GaveUp(Exception):
    """What a transaction is rolled back by."""


# Each yields what is a db, in a transaction that is committed unless an exception leaves it.


@contextmanager
def psycopg_connection():
    with psycopg.connect(row_factory=dict_row) as connection:
        yield connection


@contextmanager
def psycopg_autocommit():
    with psycopg.connect(autocommit=True) as connection, connection.transaction():
        yield connection


@contextmanager
def psycopg_raw():
    with psycopg.connect(cursor_factory=psycopg.RawCursor) as connection:
        yield connection


@contextmanager
def psycopg_of_pool():
    with ConnectionPool(min_size=1) as pool, pool.connection() as connection:
        yield connection


@contextmanager
def engine(**options):
    made = sa.create_engine("postgresql+psycopg://", **options)
    yield made
    made.dispose()


@contextmanager
def sqlalchemy_connection():
    with engine() as made, made.begin() as connection:
        yield connection


@contextmanager
def sqlalchemy_session():
    with engine() as made, Session(made) as session, session.begin():
        yield session


@contextmanager
def sqlalchemy_scoped_session():
    with engine() as made:
        scoped = scoped_session(sessionmaker(made))
        try:
            yield scoped
            scoped.commit()
        finally:
            scoped.remove()


@contextmanager
def django_connection():
    from django.db import connection, transaction

    try:
        with transaction.atomic():
            yield connection
    finally:
        connection.close()


@contextmanager
def function():
    """Of any other driver."""
    with psycopg.connect() as connection:
        yield lambda sql, values: connection.execute(sql, values).fetchall()


TRANSACTIONS = {
    "psycopg Connection": psycopg_connection,
    "psycopg Connection with autocommit": psycopg_autocommit,
    "psycopg Connection with raw cursors": psycopg_raw,
    "psycopg ConnectionPool's Connection": psycopg_of_pool,
    "SQLAlchemy Connection": sqlalchemy_connection,
    "SQLAlchemy Session": sqlalchemy_session,
    "SQLAlchemy scoped_session": sqlalchemy_scoped_session,
    "Django connection": django_connection,
    "a function": function,
}


# On these each call is a transaction of its own.


@contextmanager
def psycopg_pool():
    with ConnectionPool(min_size=1) as pool:
        yield pool


@contextmanager
def psycopg_alone():
    with psycopg.connect(autocommit=True) as connection:
        yield connection


@contextmanager
def django_alone():
    from django.db import connection

    try:
        yield connection
    finally:
        connection.close()


ALONE = {
    "psycopg ConnectionPool": psycopg_pool,
    "psycopg Connection with autocommit": psycopg_alone,
    "SQLAlchemy Engine": engine,
    "Django connection": django_alone,
}


@asynccontextmanager
async def async_psycopg_connection():
    async with await psycopg.AsyncConnection.connect(row_factory=dict_row) as connection:
        yield connection


@asynccontextmanager
async def async_psycopg_of_pool():
    async with AsyncConnectionPool(min_size=1, open=False) as pool, pool.connection() as connection:
        yield connection


@asynccontextmanager
async def asyncpg_connection():
    connection = await asyncpg.connect()
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_of_pool():
    # With codecs of its own for JSON and times.
    async def prepare(connection):
        await connection.set_type_codec("jsonb", encoder=repr, decoder=repr, schema="pg_catalog")
        await connection.set_type_codec("timestamptz", encoder=repr, decoder=repr, schema="pg_catalog")

    async with asyncpg.create_pool(min_size=1, init=prepare) as pool, pool.acquire() as connection:
        async with connection.transaction():
            yield connection


@asynccontextmanager
async def async_engine(driver="asyncpg"):
    made = create_async_engine(f"postgresql+{driver}://")
    yield made
    await made.dispose()


@asynccontextmanager
async def sqlalchemy_async_connection():
    async with async_engine() as made, made.begin() as connection:
        yield connection


@asynccontextmanager
async def sqlalchemy_async_session():
    async with async_engine() as made, AsyncSession(made) as session, session.begin():
        yield session


@asynccontextmanager
async def sqlalchemy_async_session_psycopg():
    async with async_engine("psycopg") as made, AsyncSession(made) as session, session.begin():
        yield session


@asynccontextmanager
async def sqlalchemy_async_scoped_session():
    async with async_engine() as made:
        scoped = async_scoped_session(async_sessionmaker(made), scopefunc=asyncio.current_task)
        try:
            yield scoped
            await scoped.commit()
        finally:
            await scoped.remove()


@asynccontextmanager
async def async_function():
    connection = await asyncpg.connect()
    try:
        async with connection.transaction():

            async def query(sql, values):
                while "%s" in sql:
                    sql = sql.replace("%s", f"${len(values) - sql.count('%s') + 1}", 1)
                return await connection.fetch(sql, *values)

            yield query
    finally:
        await connection.close()


ASYNC_TRANSACTIONS = {
    "psycopg AsyncConnection": async_psycopg_connection,
    "psycopg AsyncConnectionPool's AsyncConnection": async_psycopg_of_pool,
    "asyncpg Connection": asyncpg_connection,
    "asyncpg Pool's Connection": asyncpg_of_pool,
    "SQLAlchemy AsyncConnection": sqlalchemy_async_connection,
    "SQLAlchemy AsyncSession": sqlalchemy_async_session,
    "SQLAlchemy AsyncSession on psycopg": sqlalchemy_async_session_psycopg,
    "SQLAlchemy async_scoped_session": sqlalchemy_async_scoped_session,
    "an async function": async_function,
}


@asynccontextmanager
async def async_psycopg_pool():
    async with AsyncConnectionPool(min_size=1, open=False) as pool:
        yield pool


@asynccontextmanager
async def asyncpg_pool():
    async with asyncpg.create_pool(min_size=1) as pool:
        yield pool


@asynccontextmanager
async def asyncpg_alone():
    connection = await asyncpg.connect()
    yield connection
    await connection.close()


ASYNC_ALONE = {
    "psycopg AsyncConnectionPool": async_psycopg_pool,
    "asyncpg Pool": asyncpg_pool,
    "asyncpg Connection": asyncpg_alone,
    "SQLAlchemy AsyncEngine": async_engine,
}
