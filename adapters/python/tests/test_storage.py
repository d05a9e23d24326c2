"""The storages against a real server with the extension."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from hashlib import sha256

import psycopg
import pytest
from conftest import EVERY, FIXED, MOVING, ON_FILE, SLIDING, STORES, every, window_with_room
from limits import RateLimitItem, parse
from limits.aio.strategies import STRATEGIES as ASYNC_STRATEGIES
from limits.errors import ConfigurationError, StorageError
from limits.storage import storage_from_string
from limits.strategies import STRATEGIES
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from postgres_rate_limit import SetupError
from postgres_rate_limit.limits import AsyncRateLimitStorage, RateLimitStorage

MINUTE = 60


@every
def test_hits_are_counted_key_by_key(create, limiter, strategy, store):
    window_with_room(MINUTE, 5)
    limits, item = limiter(strategy, create(store=store)), parse("3 per minute")
    assert limits.get_window_stats(item, "a").remaining == 3
    before = time.time()
    assert limits.hit(item, "a") and limits.hit(item, "a")
    reset_time, remaining = limits.get_window_stats(item, "a")
    assert remaining == 1
    if strategy == SLIDING:
        assert reset_time == pytest.approx(before // MINUTE * MINUTE + MINUTE, abs=1)
    else:
        assert reset_time == pytest.approx(before + MINUTE, abs=5)
    assert limits.test(item, "a") and not limits.test(item, "a", cost=2)
    assert limits.hit(item, "a") and not limits.test(item, "a") and not limits.hit(item, "a")
    assert limits.get_window_stats(item, "a").remaining == 0

    assert limits.hit(item, "b") and limits.get_window_stats(item, "b").remaining == 2
    limits.clear(item, "a")
    assert [limits.get_window_stats(item, key).remaining for key in ("a", "b")] == [3, 2]


@every
def test_cost(create, limiter, strategy, store, still):
    limits, item = limiter(strategy, create(still=still, store=store)), parse("10 per minute")
    assert limits.hit(item, cost=4) and limits.hit(item, cost=6)
    assert not limits.hit(item)
    assert not limits.hit(item, "other", cost=11)


@every
def test_a_limit_of_0_lets_nothing_pass(create, limiter, strategy, store):
    limits, item = limiter(strategy, create(store=store)), parse("0 per minute")
    assert not limits.test(item) and not limits.hit(item) and not limits.hit(item)
    assert limits.get_window_stats(item).remaining == 0


@every
def test_a_window_ends(create, limiter, strategy, store, still):
    limits, item = limiter(strategy, create(still=still, store=store)), parse("2 per 2 seconds")
    assert limits.hit(item, cost=2) and not limits.hit(item)
    # The counter weighs what the window before has used.
    ends = still.now // 2 * 2 + 4 if strategy == SLIDING else limits.get_window_stats(item).reset_time
    still.now = ends - (1.01 if strategy == SLIDING else 0.01)  # that it rounds down
    assert not limits.hit(item, cost=2)
    still.now = ends + 0.001
    assert limits.get_window_stats(item).remaining == 2
    assert limits.hit(item, cost=2) and not limits.hit(item)


@every
def test_a_window_ends_by_the_clock_of_the_server(create, limiter, strategy, store):
    limits, item = limiter(strategy, create(store=store)), parse("1 per second")
    assert limits.hit(item)
    deadline = time.monotonic() + 60
    while not limits.hit(item):
        assert time.monotonic() < deadline


def test_a_moving_window_moves(create, limiter, still):
    limits, item = limiter(MOVING, create(still=still)), parse("2 per 4 seconds")
    first = still.now + 4
    assert limits.hit(item)
    assert limits.get_window_stats(item).reset_time == pytest.approx(first)
    still.now += 1
    assert limits.hit(item) and not limits.hit(item)
    assert limits.get_window_stats(item) == (pytest.approx(first), 0)
    still.now = first - 0.01
    assert not limits.hit(item)
    still.now = first + 0.001
    assert limits.hit(item) and not limits.hit(item)


@pytest.mark.parametrize("store", STORES)
def test_the_counter_weighs_the_window_before(create, limiter, store, still):
    storage, item = create(still=still, store=store), parse("8 per 2 seconds")
    limits, key = limiter(SLIDING, storage), item.key_for()
    begin = still.now // 2 * 2
    assert limits.hit(item, cost=8)
    previous, _, current, left = storage.get_sliding_window(key, 2)
    assert (previous, current) == (0, 8)
    assert left == pytest.approx(begin + 4 - still.now)

    hits = 0
    for step in range(30):
        still.now = begin + 2.01 + step / 20
        # What is promised before a hit holds, and what holds after it held before.
        tested, remaining, before = limits.test(item), limits.get_window_stats(item).remaining, hits
        promised = weight(storage.get_sliding_window(key, 2), 8, before)
        hits += limits.hit(item)
        assert tested == (remaining >= 1) == (hits > before)
        if hits == before:
            assert promised > 8 - 1e-6
        else:
            assert weight(storage.get_sliding_window(key, 2), 8, hits) - 1 < 8
    assert hits == 6


def weight(window, previous, current):
    """What the windows of 2 seconds, of which that many hits are known, weigh."""
    assert (window[0], window[2]) == (previous, current)
    return previous * window[1] / 2 + current


@pytest.mark.parametrize("store", STORES)
def test_a_key_may_have_several_strategies(create, limiter, store, still):
    storage, item = create(still=still, store=store), parse("2 per minute")
    every = [limiter(strategy, storage) for strategy, where in EVERY if where == store]
    for limits in every:
        assert limits.hit(item) and limits.hit(item) and not limits.hit(item)
    assert storage.reset() == len(every)
    assert all(limits.get_window_stats(item).remaining == 2 for limits in every)
    for limits in every:
        limits.hit(item)
    storage.clear(item.key_for())
    assert all(limits.get_window_stats(item).remaining == 2 for limits in every)


@pytest.mark.parametrize("store", STORES)
def test_one_name_counts_together_others_apart(create, name, store):
    one, other, apart = create(store=store), create(store=store), create(store=store, name=f"{name} apart")
    key = parse("2 per minute").key_for()
    assert (one.incr(key, MINUTE), other.incr(key, MINUTE), apart.incr(key, MINUTE)) == (1, 2, 1)
    assert one.reset() == 1
    assert (other.get(key), apart.get(key)) == (0, 1)


@pytest.mark.parametrize("store", STORES)
def test_what_is_denied_takes_nothing_and_answers_more_than_the_limit(create, store):
    storage, key = create(store=store), parse("5 per minute").key_for()
    assert [storage.incr(key, MINUTE, amount) for amount in (6, 4, 2, 10**15, 1, 1)] == [6, 4, 6, 10**15 + 4, 5, 6]
    assert storage.get(key) == 5


def test_a_key_that_does_not_tell_the_limit_counts_to_100_million(create):
    storage, hundred_million = create(), 10**8
    assert [storage.incr("k", MINUTE, amount) for amount in (1, hundred_million - 1)] == [1, hundred_million]
    assert storage.incr("k", MINUTE) > 10**15
    assert storage.get("k") == hundred_million


@pytest.mark.parametrize("amount", [5, 10**8, 10**12])
def test_a_fixed_window_begins_with_its_first_hit(create, amount, still):
    storage = create(still=still)
    for key in (parse(f"{amount} per minute").key_for(), "k"):
        # The tolerance of a large limit is more than a hit.
        storage.incr(key, MINUTE, max(1, amount // 10**8))
        first = still.now + MINUTE
        assert storage.get_expiry(key) == pytest.approx(first, abs=1e-3)
        still.now += 0.1
        storage.incr(key, MINUTE)
        assert storage.get_expiry(key) == pytest.approx(first, abs=1e-3)


class Fortnight(RateLimitItem):
    GRANULARITY = parse("1 per day").GRANULARITY._replace(seconds=14 * 86_400, name="fortnight")


def test_the_expiry_is_that_of_the_key_or_of_incr(create):
    storage = create()
    for item in (parse("5 per 3 hours"), Fortnight(5)):
        key, expiry = item.key_for("user"), item.get_expiry()
        storage.incr(key, expiry)
        # Another process.
        assert create().get(key) == 1
        assert create().get_expiry(key) == pytest.approx(time.time() + expiry, abs=5)
    for key in ("plain", "LIMITER/5/1/hour"):
        storage.incr(key, 30)
        assert storage.get(key) == 1
        assert storage.get_expiry(key) == pytest.approx(time.time() + 30, abs=5)
    for read in (create().get, create().get_expiry):
        with pytest.raises(ValueError, match="key is 'plain'"):
            read("plain")


def hit_at_once(limits, item, threads=16, calls=4):
    barrier, passed = threading.Barrier(threads), []

    def hit():
        barrier.wait()
        passed.extend(limits.hit(item) for _ in range(calls))

    running = [threading.Thread(target=hit) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(passed) == threads * calls
    return sum(passed)


@every
def test_of_16_threads_exactly_the_limit_passes(name, strategy, store):
    window_with_room(MINUTE, 10)
    storage = RateLimitStorage(name=name, store=store)
    assert hit_at_once(STRATEGIES[strategy](storage), parse("10 per minute")) == 10
    storage.pool.close()


@every
def test_of_100_tasks_exactly_the_limit_passes(name, strategy, store):
    window_with_room(MINUTE, 10)

    async def hit_at_once():
        storage = AsyncRateLimitStorage(name=name, store=store)
        limits, item = ASYNC_STRATEGIES[strategy](storage), parse("10 per minute")
        passed = await asyncio.gather(*(limits.hit(item) for _ in range(100)))
        await storage.pool.close()
        return sum(passed)

    assert asyncio.run(hit_at_once()) == 10


def calls(item):
    key, expiry = item.key_for(), item.get_expiry()
    yield "incr", (key, expiry)
    yield "get", (key,)
    yield "get_expiry", (key,)
    yield "reset", ()
    yield "clear", (key,)
    yield "acquire_entry", (key, item.amount, expiry)
    yield "get_moving_window", (key, item.amount, expiry)
    yield "acquire_sliding_window_entry", (key, item.amount, expiry)
    yield "get_sliding_window", (key, expiry)
    yield "clear_sliding_window", (key, expiry)


def test_errors_are_passed_on(create):
    gone, wrapping = [create("//?host=/nowhere", timeout=0.1, wrap_exceptions=wrap) for wrap in (False, True)]
    for method, arguments in calls(parse("3 per minute")):
        with pytest.raises(psycopg.OperationalError):
            getattr(gone, method)(*arguments)
        with pytest.raises(StorageError) as error:
            getattr(wrapping, method)(*arguments)
        assert isinstance(error.value.storage_error, psycopg.OperationalError)
    assert (gone.check(), wrapping.check(), create().check()) == (False, False, True)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="period"):
        create().incr("k", 0)


@every
def test_keys_that_are_too_long_or_no_text_are_counted_each_by_itself(create, limiter, strategy, store, still):
    limits, item = limiter(strategy, create(still=still, store=store)), parse("3 per minute")
    long = ["k" * 1025, "k" * 100_000, "é" * 513, "a\0b", "a\0c", "\0", "\ud800"]
    for key in long:
        assert limits.hit(item, key) and limits.hit(item, key)
        assert limits.get_window_stats(item, key).remaining == 1
        limits.clear(item, key)
        assert limits.get_window_stats(item, key).remaining == 3
    if strategy == FIXED:
        storage = create(store=store)
        assert storage.incr(long[0], MINUTE) == 1
        hash = "sha256:" + sha256(long[0].encode()).hexdigest()
        assert storage.incr(hash, MINUTE) == 1, "nobody can write the hash of another key"


def test_a_lost_connection_comes_back(create, name):
    storage = create(f"//?application_name={name}")
    storage.incr("k", MINUTE)
    with psycopg.connect() as connection:
        ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s"
        assert connection.execute(ended, [name]).fetchall() == [(True,)]
    assert storage.incr("k", MINUTE) == 2


def test_the_server_is_asked_once_a_call(create, hanging):
    storage = create(f"//?host={hanging.folder}", max_size=1)
    storage.incr("k", MINUTE)
    before = hanging.requests
    for hits in range(2, 12):
        assert storage.incr("k", MINUTE) == hits
    assert hanging.requests - before == 10


def test_a_database_that_hangs_is_an_error_in_time_and_comes_back(create, hanging):
    storage = create(f"//?host={hanging.folder}", max_size=2, timeout=0.3, query_timeout=0.3)

    def answers():
        """Asks until it answers in time, which on a busy machine may take several calls."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return storage.incr("k", MINUTE)
            except psycopg.OperationalError:
                assert time.monotonic() < deadline

    before = answers()
    hanging.hangs = True
    for _ in range(4):  # the connection that is there, and others that can't be made
        with pytest.raises(psycopg.OperationalError):
            storage.incr("k", MINUTE)
    hanging.hangs = False
    assert answers() > before


def test_nobody_need_ask_for_time_outs(create, monkeypatch):
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    pool = create().pool
    # A pause between two tries to connect is never longer than the reconnect_timeout.
    assert (pool.timeout, pool.reconnect_timeout, pool.kwargs["connect_timeout"]) == (5, 2, 5)
    assert "connect_timeout" not in create("//?connect_timeout=3").pool.kwargs
    assert create(reconnect_timeout=9).pool.reconnect_timeout == 9
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "4")
    assert "connect_timeout" not in create().pool.kwargs


def test_of_the_arguments_of_a_connection_some_can_be_given(create):
    storage = create(kwargs={"application_name": "mine"})
    assert storage.incr("k", MINUTE) == 1
    assert storage.pool.kwargs["autocommit"] and storage.pool.kwargs["application_name"] == "mine"


def test_functions_in_a_schema_of_their_own_are_found(create):
    elsewhere = f"{os.environ['PGDATABASE']}_elsewhere"
    unfound, wrapping = create(f"///{elsewhere}"), create(f"///{elsewhere}", wrap_exceptions=True)
    ways = [create(f"///{elsewhere}", schema="limits"), create(f"///{elsewhere}?options=-csearch_path%3Dlimits")]
    if ON_FILE:  # nothing says that its schema has this name
        with pytest.raises(SetupError):
            unfound.incr("k", MINUTE)
        with pytest.raises(StorageError):
            wrapping.incr("k", MINUTE)
        assert not unfound.check()
    else:
        ways.append(unfound)
    for storage in ways:
        for method, arguments in calls(parse("3 per minute")):
            getattr(storage, method)(*arguments)


@pytest.mark.edition("file")
def test_memory_is_refused_by_the_file_which_says_who_has_it(create):
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="extension"):
        create(store="memory").incr("k", MINUTE)


@pytest.mark.edition("extension")
def test_memory_counts_in_a_read_only_session_and_the_table_says_that_it_cannot(create):
    read_only = "//?options=-cdefault_transaction_read_only%3Don"
    assert create(read_only, store="memory").incr("k", MINUTE) == 1
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        create(read_only).incr("k", MINUTE)


@pytest.mark.parametrize("prepare, statements", [(False, 0), (True, 4)])
def test_statements_are_prepared_where_one_asks_for_it(create, prepare, statements):
    storage = create(max_size=1, prepare=prepare)
    for hits in range(1, 11):
        assert storage.incr("k", MINUTE) == hits
    assert storage.get("k") == 10
    storage.clear("k")
    prepared = "SELECT count(*) FROM pg_prepared_statements"

    async def count():
        async with storage.pool.connection() as connection:
            return (await (await connection.execute(prepared, prepare=False)).fetchone())[0]

    if isinstance(storage, RateLimitStorage):
        with storage.pool.connection() as connection:
            assert connection.execute(prepared, prepare=False).fetchone() == (statements,)
    else:
        assert storage.run(count()) == statements


def test_a_pool_that_is_handed_in_is_used_and_each_call_commits(name):
    with ConnectionPool(kwargs={"row_factory": dict_row}, min_size=1, max_size=1) as pool:
        storage = storage_from_string("postgresql+ratelimit://", pool=pool, name=name)
        assert storage.pool is pool
        assert storage.incr("k", MINUTE) == 1
        other = RateLimitStorage(name=name)
        assert other.incr("k", MINUTE) == 2
        other.pool.close()


def test_the_address_is_for_the_driver_and_options_for_the_storage():
    address, field = "postgresql{}://ada:p%40ss@one:5433,two/shop?sslmode=prefer", "&application_name=x%3Dy"
    uri = address.format("+ratelimit") + "&name=a%20b&store=memory" + field
    for of in (uri, f"async+{uri}"):
        storage = storage_from_string(of)
        assert storage.pool.conninfo == address.format("") + field
        assert (storage.name, storage.store) == ("a b", "memory")
        # What is said in the call comes first.
        storage = storage_from_string(of, name="c", store="table")
        assert (storage.name, storage.store) == ("c", "table")
    assert (RateLimitStorage().name, RateLimitStorage().store) == ("limits", "table")


def test_what_is_wrong_is_named(kind, create, limiter):
    other = AsyncConnectionPool if kind == "sync" else ConnectionPool
    for options, message in [
        ({"store": "redis"}, 'store is \'redis\'; allowed: "table", "memory"'),
        ({"name": ""}, "name is ''; allowed: 1 to 150 bytes"),
        ({"name": "é" * 76}, "name is 'é.*allowed: 1 to 150 bytes"),
        ({"pool": "pool"}, "pool is 'pool'; allowed: a .*ConnectionPool"),
        ({"pool": other(open=False)}, "pool is .*; allowed: a "),
        ({"address": "//?sslmod=require"}, "sslmod"),
        ({"query_timeout": 0}, "query_timeout is 0; allowed: seconds, more than 0"),
        ({"schema": "a b"}, "schema is 'a b'; allowed: letters, digits and _"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            create(**options)
    with pytest.raises(TypeError, match="max_sise"):
        create(max_sise=3)
    mine = AsyncConnectionPool if kind == "async" else ConnectionPool
    for options in ({"address": "//localhost"}, {"max_size": 3}, {"prepare": True}, {"query_timeout": 3}):
        with pytest.raises(ConfigurationError, match="pool: "):
            create(pool=mine(open=False), **options)


def test_what_a_moving_window_cannot_be_is_named(create, limiter):
    with pytest.raises(ConfigurationError, match='store is "memory"; allowed with moving-window: "table"'):
        limiter(MOVING, create(store="memory"))
    limits = limiter(MOVING, create())
    assert limits.hit(parse("10000 per minute"), cost=10_000)
    for call in (limits.hit, limits.test, limits.get_window_stats):
        with pytest.raises(ConfigurationError, match="limit is 10001; allowed with moving-window: at most 10000"):
            call(parse("10001 per minute"))


def test_a_forked_child_has_connections_of_its_own(name):
    program = f"""
import os, sys, threading
from limits import parse
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter
import postgres_rate_limit.limits
storage = storage_from_string("postgresql+ratelimit://", name={name!r}, timeout=10)
limiter, item = FixedWindowRateLimiter(storage), parse("1000/hour")
pid = "SELECT pg_backend_pid()"
assert limiter.hit(item, "ada")
with storage.pool.connection() as connection:
    (mine,) = connection.execute(pid).fetchone()
child = os.fork()
if child == 0:
    try:
        for _ in range(50):
            assert limiter.hit(item, "ada")
        with storage.pool.connection() as connection:
            assert connection.execute(pid).fetchone() != (mine,)
        os._exit(0)
    except BaseException as error:
        print(repr(error))
        os._exit(1)
for _ in range(50):
    assert limiter.hit(item, "ada")
assert os.waitpid(child, 0)[1] == 0
assert limiter.get_window_stats(item, "ada").remaining == 1000 - 101
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
