"""What the tests share: storages on the server of the environment (PGHOST, PGUSER, PGDATABASE).

Each test has a name of its own.
"""

import asyncio
import inspect
import os
import socket
import threading
import time
from contextlib import contextmanager
from uuid import uuid4

import limits.aio.strategies
import limits.strategies
import pytest
from limits.storage import storage_from_string

import postgres_rate_limit.limits  # noqa: F401  registers the schemes

# The server has the extension, or the SQL file, which keeps no limits in memory.
EDITION = os.environ.get("RATELIMIT_EDITION")
ON_FILE = EDITION == "file"
# The application's clock is an hour ahead of the database's or, on the file, behind it: windows begin at the same time.
APART = {"extension": 3600, "file": -3600}.get(EDITION, 0)
real_time = time.time
time.time = lambda: real_time() + APART


class Clock:
    """The clocks of the application and of the limiter, which stand still until a test moves them: at first in the
    middle of a minute, half a second after a window of two began."""

    SET = "SELECT set_config('ratelimit.clock', %s, false)"

    def __init__(self):
        self.now = 0.0

    @contextmanager
    def set(self, monkeypatch):
        self.now = time.time() // 60 * 60 + 30.5
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda: self.now)
            yield self

    def options(self, is_async):
        """Those of a storage on these clocks: before each use of a connection, which is that of an owner."""
        return {"check": self._check_async if is_async else self._check, "kwargs": {"user": "postgres"}}

    def _values(self):
        return [repr((self.now - APART) * 1000)]

    def _check(self, connection):
        connection.execute(self.SET, self._values())

    async def _check_async(self, connection):
        await connection.execute(self.SET, self._values())


@pytest.fixture
def still(monkeypatch):
    with Clock().set(monkeypatch) as clock:
        yield clock


FIXED, MOVING, SLIDING = "fixed-window", "moving-window", "sliding-window-counter"
STORES = ["table"] if ON_FILE else ["table", "memory"]
EVERY = [(strategy, store) for strategy in (FIXED, MOVING, SLIDING) for store in STORES]
EVERY = [each for each in EVERY if each != (MOVING, "memory")]
every = pytest.mark.parametrize("strategy, store", EVERY)


def pytest_collection_modifyitems(config, items):
    """Leaves out what is for the other edition."""
    others = [item for item in items for mark in item.iter_markers("edition") if (mark.args[0] == "file") != ON_FILE]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


SCHEMES = {"sync": "postgresql+ratelimit", "async": "async+postgresql+ratelimit"}


def window_with_room(seconds, room):
    """Waits until the window, which begins at multiples of these seconds, has this much left."""
    left = seconds - time.time() % seconds
    if left < room:
        time.sleep(left + 0.05)


class Hanging:
    """A way to the database, in a folder or by TCP, on which nothing arrives while it hangs; it counts requests."""

    def __init__(self, folder=None):
        self.folder, self.hangs, self.sockets, self.requests = folder, False, [], 0
        port = os.environ["PGPORT"]
        self.to = f"{os.environ['PGHOST']}/.s.PGSQL.{port}"
        self.listener = socket.socket(socket.AF_UNIX if folder else socket.AF_INET)
        self.listener.bind(f"{folder}/.s.PGSQL.{port}" if folder else ("127.0.0.1", 0))
        self.port = port if folder else str(self.listener.getsockname()[1])
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.to)
            self.sockets += [client, server]
            for ends in ((client, server, 1), (server, client, 0)):
                threading.Thread(target=self.copy, args=ends, daemon=True).start()

    def copy(self, source, target, requests):
        try:
            while data := source.recv(65536):
                self.requests += requests
                if not self.hangs:
                    target.sendall(data)
        except OSError:
            pass

    def close(self):
        self.cut(self.listener)

    def cut(self, *others):
        """Ends the connections that there are."""
        for each in (*others, *self.sockets):
            try:
                each.shutdown(socket.SHUT_RDWR)  # which wakes the threads that wait for it
            except OSError:
                pass
            each.close()


@pytest.fixture
def hanging(tmp_path_factory):
    hanging = Hanging(tmp_path_factory.mktemp("hangs"))
    yield hanging
    hanging.close()


@pytest.fixture
def proxy(monkeypatch):
    """The way by TCP, which what connects without an address goes."""
    proxy = Hanging()
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", proxy.port)
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    yield proxy
    proxy.close()


class Blocking:
    """Calls an asynchronous object without await."""

    def __init__(self, of, run):
        self.of, self.run = of, run

    def __getattr__(self, attribute):
        found = getattr(self.of, attribute)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **others: self.run(found(*args, **others))


@pytest.fixture
def name():
    return uuid4().hex


@pytest.fixture(params=SCHEMES)
def kind(request):
    return request.param


@pytest.fixture
def create(kind, name):
    """Makes a storage of either kind, whose methods block. still: its clocks."""
    loop = asyncio.new_event_loop()
    made = []

    def create(address="//", still=None, **options):
        if still:
            options.update(still.options(kind == "async"))
        storage = storage_from_string(f"{SCHEMES[kind]}:{address}", **{"name": name, **options})
        made.append(storage if kind == "sync" else Blocking(storage.pool, loop.run_until_complete))
        return storage if kind == "sync" else Blocking(storage, loop.run_until_complete)

    yield create
    for each in made:
        (each if kind == "async" else each.pool).close()
    loop.close()


@pytest.fixture
def limiter(kind):
    """Makes the limiter of a strategy, whose methods block."""

    def limiter(strategy, storage):
        if kind == "sync":
            return limits.strategies.STRATEGIES[strategy](storage)
        return Blocking(limits.aio.strategies.STRATEGIES[strategy](storage.of), storage.run)

    return limiter
