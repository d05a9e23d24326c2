"""What fails open, and what never does: a server that is stopped, that hangs, and a table that is locked."""

import asyncio
import logging
import os
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import psycopg
import pytest
from conftest import FIXED, MOVING, ON_FILE, SLIDING
from databases import ALONE, ASYNC_ALONE, ASYNC_TRANSACTIONS, TRANSACTIONS, codes, get_from_django
from django.db import connections
from examples import failing
from limits import parse
from limits.errors import ConfigurationError
from test_frameworks import (
    STORES_OF_DJANGO,
    atomic_requests,
    fastapi_limited,
    flask_app,
    get_from_fastapi,
    get_from_flask,
    slowapi_app,
)

from postgres_rate_limit import (
    HOUR,
    AsyncRateLimiter,
    RateLimiter,
    RateLimitExceeded,
    SetupError,
    concurrency,
    fixed_window,
)

TWO = fixed_window(2, HOUR, start="first request")
TIMEOUT = 0.5
ELSEWHERE = f"{'file' if ON_FILE else 'adapters'}_elsewhere"
KINDS = [*ALONE, *(f"async {kind}" for kind in ASYNC_ALONE)]
# What the client does, or a driver, is the same on both.
once = pytest.mark.edition("extension")
each_kind = pytest.mark.parametrize("kind", KINDS[:1] if ON_FILE else KINDS)


class Blocking:
    """Calls the asynchronous client without await."""

    def __init__(self, client, run):
        self.client, self.run = client, run

    def __getattr__(self, attribute):
        def call(*arguments, **others):
            async def made():
                answer = getattr(self.client, attribute)(*arguments, **others)
                return await answer

            return self.run(made())

        return call


@contextmanager
def opened(kind, **options):
    """A function that makes clients on one db of a kind, and the kind's own way to a database."""
    if kind.startswith("async "):
        loop = asyncio.new_event_loop()
        entered = ASYNC_ALONE[kind.removeprefix("async ")]()
        db = loop.run_until_complete(entered.__aenter__())
        try:
            yield lambda **how: Blocking(AsyncRateLimiter(db=db, **options, **how), loop.run_until_complete)
        finally:
            try:
                loop.run_until_complete(asyncio.wait_for(entered.__aexit__(None, None, None), 10))
            except Exception:
                pass  # the server is gone
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
        return
    with django_goes_to_the_environment(), ALONE[kind]() as db:
        yield lambda **how: RateLimiter(db=db, **options, **how)


@contextmanager
def django_goes_to_the_environment(**settings):
    there = {"HOST": os.environ["PGHOST"], "PORT": os.environ["PGPORT"], "NAME": os.environ["PGDATABASE"], **settings}
    before = [dict(connection.settings_dict) for connection in connections.all()]
    for connection in connections.all():
        connection.close()
        connection.settings_dict |= there
    try:
        yield
    finally:
        for connection, settings in zip(connections.all(), before):
            connection.close()
            connection.settings_dict |= settings


def open_answers(client, name, slots):
    """Every call that asks whether work may be done, and its answer where it went unchecked."""
    requests = [{"name": name, "count": 2}, {"name": slots}]
    yield client.limit(name, count=3)
    yield client.check(name)
    yield client.limit_all(requests)
    yield client.check_all(requests)
    yield client.acquire(slots)
    yield client.hold(name)
    yield client.hold_all(requests)


def assert_unchecked(answer):
    assert answer.ok and answer.error is not None, answer
    assert getattr(answer, "retry_after", None) is None and getattr(answer, "id", None) is None


@contextmanager
def locked():
    """The table of the database that no test with a short time-out uses, but for these, one after another."""
    with psycopg.connect(f"user=postgres dbname={ELSEWHERE}") as admin:
        admin.execute("SELECT pg_advisory_xact_lock(47)")
        admin.execute("LOCK TABLE limits.rateLimits")
        yield admin


def comes_back(call):
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = call()
            if answer.error is None:
                return answer
        except Exception:
            assert time.monotonic() < deadline
        time.sleep(0.05)


@once
@each_kind
def test_a_server_that_hangs_or_is_stopped(kind, name, proxy):
    slots, told = f"slots of {name}", []
    with opened(kind, limits={name: TWO, slots: concurrency(1, HOUR)}, timeout=TIMEOUT) as make:
        client, closed = make(on_error="open", on_decision=told.append), make()
        comes_back(lambda: client.check(name))
        told.clear()
        assert client.limit(name).remaining == 1
        hold = client.hold(name, count=0)
        proxy.hangs = True
        began = time.monotonic()
        assert_unchecked(client.limit(name))
        assert time.monotonic() - began < 10
        with pytest.raises(Exception) as raised:
            closed.limit(name)
        assert not isinstance(raised.value, (RateLimitExceeded, SetupError))
        with pytest.raises(Exception):
            client.limit(name, on_error="closed")
        if kind in ("psycopg Connection with autocommit", "async asyncpg Connection"):
            with pytest.raises(Exception):
                client.limit(name)  # the connection is the caller's, and is closed now
            return
        assert_unchecked(closed.check(name, on_error="open"))
        proxy.hangs = False
        assert comes_back(lambda: client.check(name)).remaining == 1
        proxy.close()
        for answer in open_answers(client, name, slots):
            assert_unchecked(answer)
        for call in (client.reset, lambda name: client.credit(name, "", 1), lambda name: client.settle(hold.id)):
            with pytest.raises(Exception):
                call(name)
    assert [(each.ok, each.error is None) for each in told[:3]] == [(True, True), (True, True), (True, False)]


@each_kind
def test_a_table_that_is_locked(kind, name, monkeypatch):
    monkeypatch.setenv("PGDATABASE", ELSEWHERE)
    with opened(kind, limits={name: TWO}, schema="limits", timeout=TIMEOUT) as make:
        client, closed = make(on_error="open"), make()
        assert comes_back(lambda: client.check(name)).remaining == 2
        with locked():
            assert_unchecked(client.limit(name))
            with pytest.raises(Exception) as raised:
                closed.limit(name)
            assert not isinstance(raised.value, (RateLimitExceeded, SetupError))


def test_the_servers_own_time_outs_are_heard(name):
    with locked():
        for setting in ("lock_timeout", "statement_timeout"):
            with psycopg.connect(dbname=ELSEWHERE, options=f"-c {setting}=100ms", autocommit=True) as connection:
                client = RateLimiter({name: TWO}, db=connection, schema="limits", on_error="open")
                assert client.limit(name).error.sqlstate == {"lock_timeout": "55P03"}.get(setting, "57014")


@once
@each_kind
def test_what_never_fails_open(kind, name, monkeypatch):
    with psycopg.connect("user=postgres", autocommit=True) as admin:
        admin.execute(f'CREATE ROLE "{name}" LOGIN')
        try:
            with opened(kind, limits={name: TWO}, on_error="open") as make:
                client = make()
                assert client.limit(name, count=2) and not client.limit(name)
                with pytest.raises(RateLimitExceeded):
                    client.limit(name, throws=True)
                with pytest.raises(Exception) as raised:
                    client.limit(name, count=-1)
                assert state_of(raised.value) == "22023"
            with opened(kind, limits=[name], defined=True, on_error="open") as make, pytest.raises(SetupError):
                make().limit(name)
            if "Django" in kind:
                return
            monkeypatch.setenv("PGUSER", name)
            with opened(kind, limits={name: TWO}, on_error="open") as make:
                with pytest.raises(Exception) as raised:
                    make().limit(name)
                assert state_of(raised.value) == "42501"
        finally:
            admin.execute(f'DROP ROLE "{name}"')


def state_of(error):
    from postgres_rate_limit._results import chain, sqlstate

    return next(filter(None, map(sqlstate, chain(error))), None)


@once
def test_a_login_that_is_refused_is_raised(name, monkeypatch, create):
    import sqlalchemy
    from psycopg_pool import AsyncConnectionPool, ConnectionPool, NullConnectionPool

    monkeypatch.setenv("PGUSER", "nobody of this name")
    for pool_class in (ConnectionPool, NullConnectionPool):
        with pool_class(min_size=0, max_size=1, open=True) as pool:
            with pytest.raises(psycopg.OperationalError):
                RateLimiter({name: TWO}, db=pool, on_error="open", timeout=TIMEOUT).limit(name)
    made = sqlalchemy.create_engine("postgresql+psycopg://")
    with pytest.raises(sqlalchemy.exc.OperationalError):
        RateLimiter({name: TWO}, db=made, on_error="open").limit(name)

    async def with_await():
        async with AsyncConnectionPool(min_size=0, max_size=1, open=False) as pool:
            with pytest.raises(psycopg.OperationalError):
                await AsyncRateLimiter({name: TWO}, db=pool, on_error="open", timeout=TIMEOUT).limit(name)

    asyncio.run(with_await())
    with pytest.raises(psycopg.OperationalError):
        create(on_error="open", timeout=TIMEOUT).incr("k", 60)


class Server:
    """A server, in a thread of this process, which answers each login with an error, or by nothing (None)."""

    def __init__(self, state):
        self.state, self.listener = state, socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                threading.Thread(target=self.answer, args=(self.listener.accept()[0],), daemon=True).start()
            except OSError:
                return

    def answer(self, client):
        try:
            while request := client.recv(4096):
                if self.state and len(request) == 8:
                    client.sendall(b"N")  # no SSL
                elif self.state:
                    fields = f"SFATAL\0VFATAL\0C{self.state}\0Mno\0\0".encode()
                    client.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
                    client.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        client.close()


@pytest.fixture
def ports():
    """By the names of servers, each on its own."""
    made = {"refuses": Server("28P01"), "starts": Server("57P03"), "hangs": Server(None), "gone": Server(None)}
    made["gone"].listener.shutdown(socket.SHUT_RDWR)
    made["gone"].listener.close()
    yield {name: str(server.port) for name, server in made.items()}
    for server in made.values():
        try:
            server.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        server.listener.close()


@once
@pytest.mark.parametrize(
    "servers",
    ["refuses", "gone refuses", "refuses gone", "hangs refuses", "refuses hangs", "starts refuses", "refuses starts"],
)
def test_one_server_that_refuses_the_login_is_enough(servers, name, ports):
    for call in logins(name, [ports[each] for each in servers.split()]):
        with pytest.raises(Exception, match="couldn't get a connection|connection"):
            pytest.fail(f"it went unchecked: {call()}")


@once
@pytest.mark.parametrize("servers", ["gone", "starts", "hangs", "gone starts", "starts gone", "gone hangs"])
def test_no_server_that_lets_anyone_in(servers, name, ports):
    for call in logins(name, [ports[each] for each in servers.split()]):
        assert_unchecked(call())


def logins(name, ports):
    """Calls that log in to servers of this process, which can answer a ping only if other threads run meanwhile."""
    import sqlalchemy
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    how = {"limits": {name: TWO}, "on_error": "open", "timeout": TIMEOUT}
    given = {"user": "app", "password": "none", "connect_timeout": "2"}
    given |= {"host": ",".join(["127.0.0.1"] * len(ports)), "port": ",".join(ports)}
    pools = {"conninfo": "", "kwargs": given, "min_size": 0, "max_size": 1, "open": False}

    def of_pool():
        with ConnectionPool(**pools) as pool:
            return RateLimiter(db=pool, **how).limit(name)

    async def of_async_pool():
        async with AsyncConnectionPool(**pools) as pool:
            return await AsyncRateLimiter(db=pool, **how).limit(name)

    yield of_pool
    yield lambda: asyncio.run(of_async_pool())
    made = sqlalchemy.create_engine("postgresql+psycopg://", connect_args=given)
    yield lambda: RateLimiter(db=made, **how).limit(name)


@once
def test_what_is_wrong_with_the_options_of_libpq_is_raised(name, monkeypatch, tmp_path):
    import sqlalchemy

    (tmp_path / "services").write_text("[gone]\nhost=/no/such/folder\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    for given in ({"service": "none"}, {"port": "ab"}, {"port": "1,2,3", "host": "a,b"}):
        made = sqlalchemy.create_engine("postgresql+psycopg://", connect_args=given)
        with pytest.raises(sqlalchemy.exc.OperationalError):
            RateLimiter({name: TWO}, db=made, on_error="open", timeout=TIMEOUT).limit(name)
    monkeypatch.delenv("PGHOST")
    made = sqlalchemy.create_engine("postgresql+psycopg://", connect_args={"service": "gone"})
    assert_unchecked(RateLimiter({name: TWO}, db=made, on_error="open", timeout=TIMEOUT).limit(name))


@once
@pytest.mark.parametrize(
    "given, raises",
    [
        ({"ssl": "require"}, ConnectionError),
        ({"dsn": "postgres:///?sslmode=verify-full&sslrootcert=/no/such/file"}, FileNotFoundError),
        ({"dsn": "postgres:///?sslmode=require&sslcert=/no/such/file"}, FileNotFoundError),
        ({"password": lambda: open("/no/such/file").read()}, FileNotFoundError),
        ({"password": lambda: open("/").read()}, IsADirectoryError),
        ({"host": "/no/such/folder"}, None),
        ({"port": 1}, None),
    ],
)
async def test_what_is_wrong_with_the_options_of_asyncpg_is_raised(given, raises, name, proxy):
    import asyncpg

    async with asyncpg.create_pool(min_size=0, max_size=1, **given) as pool:
        client = AsyncRateLimiter({name: TWO}, db=pool, on_error="open")
        if raises is None:
            assert_unchecked(await client.limit(name))
        else:
            with pytest.raises(raises):
                pytest.fail(f"it went unchecked: {await client.limit(name)}")


@once
def test_a_transaction_of_the_callers_never_fails_open(name, proxy):
    for kind in ("psycopg Connection", "SQLAlchemy Session", "a function"):
        with pytest.raises(Exception), TRANSACTIONS[kind]() as db:
            client = RateLimiter({name: TWO}, db=db, on_error="open")
            with pytest.raises(TypeError, match='on_error is "open" in a transaction'):
                client.limit(name, on_error="open")
            client.limit(name)
            proxy.cut()
            answer = client.limit(name)
            pytest.fail(f"{kind}: {answer}")


@once
async def test_a_transaction_of_the_callers_never_fails_open_with_await(name):
    async with ASYNC_TRANSACTIONS["asyncpg Connection"]() as db:
        client = AsyncRateLimiter({name: TWO}, db=db, on_error="open")
        with pytest.raises(TypeError, match='on_error is "open" in a transaction'):
            await client.limit(name, on_error="open")
        assert await client.limit(name)


@once
def test_the_end_of_a_block_does_not_fail_work_that_is_done(name, proxy, caplog):
    slots = f"slots of {name}"
    caplog.set_level(logging.WARNING, "postgres_rate_limit")
    with opened("psycopg ConnectionPool", limits={name: TWO, slots: concurrency(1, HOUR)}, timeout=TIMEOUT) as make:
        client, closed = make(on_error="open"), make()
        comes_back(lambda: client.check(name))
        with client.hold(name), client.acquire(slots):
            proxy.hangs = True
        assert caplog.text.count("went unchecked") == 2
        proxy.hangs = False
        comes_back(lambda: client.check(name))
        with pytest.raises(psycopg.OperationalError), closed.hold(name):
            proxy.hangs = True


# The storages of limits.


@pytest.mark.parametrize("strategy", [FIXED] if ON_FILE else [FIXED, MOVING, SLIDING])
def test_a_storage_that_is_open(strategy, create, limiter, proxy):
    unchecked = []
    storage = create(
        on_error="open", on_unchecked=unchecked.append, max_size=2, timeout=TIMEOUT, query_timeout=TIMEOUT
    )
    limits, two = limiter(strategy, storage), parse("2 per hour")
    while not storage.check():
        pass  # until there is a connection
    assert limits.hit(two) and limits.hit(two) and not limits.hit(two)
    for change in (lambda: setattr(proxy, "hangs", True), proxy.close)[strategy != FIXED :]:
        change()
        assert limits.hit(two) and limits.test(two) and not limits.hit(parse("0 per hour"))
        stats = limits.get_window_stats(two)
        assert stats.remaining == 2 and -5 < stats.reset_time - time.time() < 3605
        assert not storage.check() and all(isinstance(each, psycopg.OperationalError) for each in unchecked)
        with pytest.raises(psycopg.OperationalError):
            storage.reset()
    assert unchecked


@once
def test_on_unchecked_is_called_once_for_a_request_and_fails_none(create, limiter, proxy, caplog):
    told, two = [], parse("2 per hour")
    how = {"on_error": "open", "timeout": TIMEOUT}
    limits = limiter(FIXED, create(on_unchecked=told.append, **how))
    failing = limiter(FIXED, create(on_unchecked=lambda error: 1 / 0, **how))
    proxy.close()
    assert limits.hit(two) and limits.test(two) and limits.get_window_stats(two).remaining == 2
    assert len(told) == 1
    assert failing.hit(two) and "on_unchecked failed" in caplog.text


@once
def test_a_storage_says_what_it_takes(create):
    for options, message in [
        ({"on_error": "ajar"}, 'on_error is \'ajar\'; allowed: "closed", "open"'),
        ({"remember_denials": {"min": 1}}, "remember_denials is "),
        ({"remember_denials": 7}, "remember_denials is 7; allowed: a bool, or a dict"),
        ({"remember_denials": {"max": 0}}, "max of at least 1"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            create(**options)
    for options in ({"on_error": "ajar"}, {"timeout": 0}, {"remember_denials": {"at_most": 0}}):
        with pytest.raises(ValueError, match=next(iter(options))):
            RateLimiter({}, **options)


def test_the_example(name, proxy, caplog):
    with opened("psycopg ConnectionPool", limits=failing.LIMITS, timeout=TIMEOUT) as make:
        comes_back(lambda: make().check("search", name))
        assert failing.search(make(), name) == "found" and "unchecked" not in caplog.text
        proxy.close()
        assert failing.search(make(), name) == "found" and "unchecked: " in caplog.text


@once
@pytest.mark.parametrize("framework", ["Flask", "FastAPI"])
def test_ours_decides_before_the_switch_of_a_middleware(framework, name, proxy):
    create, get = {"Flask": (flask_app, get_from_flask), "FastAPI": (slowapi_app, get_from_fastapi)}[framework]
    options = {"name": name, "timeout": TIMEOUT, "query_timeout": TIMEOUT}
    unchecked = []
    how = {"on_error": "open", "on_unchecked": unchecked.append}
    app, _, storage = create("2 per hour", swallow_errors=True, storage_options={**options, **how})
    while not storage.check():
        pass  # until there is a connection
    assert [get(app, 1)[0].status_code for _ in range(3)] == [200, 200, 429]
    closed, _, other = create("2 per hour", storage_options=options)
    proxy.close()
    assert get(app, 1)[0].status_code == 200 and unchecked
    with pytest.raises(psycopg.OperationalError):
        get(closed, 1)
    storage.pool.close(), other.pool.close()


@once
@pytest.mark.parametrize("create", STORES_OF_DJANGO)
def test_a_store_of_django(create, name, proxy):
    unchecked = []
    opened = create(2, name, on_error="open", on_unchecked=unchecked.append, timeout=TIMEOUT)
    closed = create(2, name)

    def denies():
        """The open one, when it is answered in time."""
        while codes(get_from_django(opened)) == [200]:
            assert len(unchecked) < 100
        return True

    with django_goes_to_the_environment(CONN_MAX_AGE=None):
        assert codes(get_from_django(closed, 3)) == [200, 200, 429] and denies()
        # A connection is lost: one request knows it, and none that looks at its connection first.
        unchecked.clear()
        proxy.cut()
        assert codes(get_from_django(opened)) == [200] and unchecked and denies()
        proxy.cut()
        assert codes(get_from_django(closed, 2)) == [500, 429]
    with django_goes_to_the_environment(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True):
        get_from_django(closed)
        proxy.cut()
        assert codes(get_from_django(closed, 2)) == [429, 429] and denies()
        proxy.hangs, begun = True, time.monotonic()
        assert codes(get_from_django(opened)) == [200] and time.monotonic() < begun + 10
        proxy.hangs = False
        assert denies()
        proxy.close()
        assert codes(get_from_django(opened)) == [200] and codes(get_from_django(closed)) == [500]
        with atomic_requests():
            assert codes(get_from_django(opened)) == [500], "nothing fails open in a transaction of the application's"


@once
async def test_fastapi_limiter(name, proxy):
    unchecked = []
    how = {"on_error": "open", "on_unchecked": unchecked.append, "timeout": TIMEOUT}
    async with fastapi_limited(2, name, **how) as opened, fastapi_limited(2, name, timeout=TIMEOUT) as closed:

        async def settled(get):
            """The answer when there is a connection again."""
            seen = len(unchecked)
            while (code := await get()) == [500] or len(unchecked) > seen:
                seen = len(unchecked)
            return code

        codes = [await settled(opened), await settled(opened), await settled(opened), await settled(closed)]
        assert codes == [[200], [200], [429], [429]]
        unchecked.clear()
        for get, lost in ((opened, 200), (closed, 500)):
            proxy.cut()
            assert await get() == [lost]
            assert await settled(get) == [429]
        assert unchecked
        proxy.hangs = True
        assert await opened() == [200] and await closed() == [500]
        proxy.hangs = False
        assert await settled(opened) == [429]
        proxy.close()
        assert await opened() == [200] and await closed() == [500]


@once
def test_a_def_route_of_slowapi_does_not_block_the_others(name):
    """It runs in a thread; slowapi asks its storage in the event loop for an async one."""
    uri = f"postgresql+ratelimit:///{ELSEWHERE}?options=-csearch_path%3Dlimits"
    app, _, storage = slowapi_app("2 per hour", storage_uri=uri, storage_options={"name": name})

    @app.get("/free")
    async def free():
        return "free"

    async def get():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
            assert (await client.get("/")).status_code == 200
            with locked() as admin:
                limited = asyncio.create_task(client.get("/"))
                while not waits(admin):
                    await asyncio.sleep(0.01)
                assert (await client.get("/free")).status_code == 200 and not limited.done()
            assert (await limited).status_code == 200

    def waits(admin):
        waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'limits.rateLimits'::regclass"
        return admin.execute(waiting).rowcount

    asyncio.run(get())
    storage.pool.close()
