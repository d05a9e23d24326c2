"""Tokens that a process has borrowed: its requests to the database, its use of the tokens, and the rest. An oracle
reads what processes have spent that die, are stopped for a while, and have wrong clocks."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from conftest import ON_FILE, Blocking
from examples import borrowing
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from postgres_rate_limit import (
    DAY,
    HOUR,
    AsyncRateLimiter,
    RateLimiter,
    RateLimitExceeded,
    UnknownLimit,
    fixed_window,
    sliding_log,
    token_bucket,
)

DAILY = fixed_window(1000, DAY, start="first request")
LONG = {"borrow_for": 60}


# Both kinds send the same SQL, so the file sees one.
@pytest.fixture(params=["sync"] if ON_FILE else ["sync", "async"])
def kind(request):
    return request.param


@pytest.fixture
def db():
    with psycopg.connect(autocommit=True) as connection:
        yield connection


@pytest.fixture
def left(name, db):
    """The tokens that a key has."""
    return lambda config=DAILY, key="": RateLimiter({name: config}, db=db).check(name, key, count=0).remaining


@pytest.fixture
def make(kind, name):
    """Makes a limiter of either kind, on a pool, whose borrowed tokens are spent without await; how often it asks."""
    loop, pools, asked = asyncio.new_event_loop(), [], []

    def make(config=DAILY, options="", **others):
        sizes = {"min_size": 1, "max_size": 4, "kwargs": {"options": options}}
        told = lambda decision: None if decision.remembered else asked.append(decision)  # noqa: E731
        if kind == "sync":
            pools.append(ConnectionPool(**sizes, open=True))
            return RateLimiter({name: config}, db=pools[-1], on_decision=told, **others)
        pool = AsyncConnectionPool(**sizes, open=False)
        pools.append(Blocking(pool, loop.run_until_complete))
        pools[-1].open()
        return AsyncRateLimiter({name: config}, db=pool, on_decision=told, **others)

    def borrow(limiter, **options):
        local = limiter.borrow(name, **options)
        return local if kind == "sync" else Blocking(local, loop.run_until_complete)

    def together(local, calls, **options):
        if kind == "sync":
            with ThreadPoolExecutor(calls) as executor:
                return list(executor.map(lambda _: local.limit(**options), range(calls)))

        async def gather():
            return await asyncio.gather(*(local.of.limit(**options) for _ in range(calls)))

        return loop.run_until_complete(gather())

    make.borrow, make.together, make.asked = borrow, together, asked
    make.sleep = time.sleep if kind == "sync" else lambda seconds: loop.run_until_complete(asyncio.sleep(seconds))
    yield make
    for pool in pools:
        pool.close()
    loop.close()


def until(is_so, sleep):
    for _ in range(6000):
        if is_so():
            return
        sleep(0.01)
    pytest.fail("it did not become so within a minute")


@pytest.mark.parametrize("config", [DAILY, token_bucket(1000, 365 * DAY)])
def test_batches_grow_and_the_rest_is_returned(make, left, config):
    local = make.borrow(make(config), **LONG, max=64)
    assert not local.take("ada"), "nothing is borrowed yet"
    for _ in range(500):
        assert local.take("ada") or local.limit("ada")
    # 1, 2, 4, 8, 16, 32, and 64 each from then on.
    assert len(make.asked) == 6 + 7 and round(left(config, "ada")) == 1000 - 63 - 7 * 64
    assert not local.take("bob")
    local.close()
    assert round(left(config, "ada")) == 500 and not local.take("ada")
    with pytest.raises(RuntimeError, match="close"):
        local.limit("ada")


def test_no_more_than_the_limit_is_spent_of_any_counts(make, left):
    spent = 0
    all = [make.borrow(make(), **LONG, max=50) for _ in range(3)]
    open = list(all)
    for n in range(10_000):
        if not open:
            break
        local, count = open[n % len(open)], n * 7 % 13
        result = local.limit(count=count)
        if result:
            spent += count
        else:
            assert HOUR.total_seconds() < result.retry_after <= DAY.total_seconds()
            local.close()
            open.remove(local)
    assert spent <= 1000 and left() == 1000 - spent


def test_calls_at_once_share_batches_and_denials(make):
    local = make.borrow(make(fixed_window(30, DAY)), **LONG, max=100)
    answers = make.together(local, 40)
    assert Counter(answer.ok for answer in answers) == {True: 30, False: 10}
    # Threads may come one after the other, and each batch is at least as large as the one before until there is less.
    assert len(make.asked) <= 20
    assert all(answer.retry_after > 0 for answer in answers if not answer.ok)


@pytest.mark.parametrize("clock", ["time", "monotonic"])
def test_a_batch_ends_by_either_clock_and_is_returned(make, left, monkeypatch, clock):
    local = make.borrow(make(), **LONG, max=64)
    for _ in range(20):
        local.limit()
    real = getattr(time, clock)
    assert local.take()
    monkeypatch.setattr(time, clock, lambda: real() + 60)
    assert not local.take()
    assert local.limit()
    monkeypatch.undo()
    local.close()
    assert left() == 1000 - 22


def test_what_is_left_is_returned_without_a_call(make, left):
    local = make.borrow(make(), borrow_for=0.05, max=64)
    spent = 0
    while spent < 20 or not local.take():
        assert local.limit()
        spent += 1
    until(lambda: left() == 1000 - spent - 1, make.sleep)
    local.close()


def test_a_batch_ends_with_its_window_and_is_not_returned_to_the_next(make, name, db):
    config = {"kind": "fixed window", "rate": 1000, "period": 3000, "start": 0}
    local = make.borrow(make(config), **LONG, max=64)
    while not (local.take() and local.take()):
        asked = time.monotonic()
        assert local.limit()
    time.sleep(max(0, asked + 3 - time.monotonic()))  # and not in the loop of tasks
    assert not local.take()
    other = RateLimiter({name: config}, db=db)
    taken = other.limit(name, count=1000, wait=60)
    local.close()
    now = other.check(name, count=0)
    assert now.remaining == 0 or now.reset_at != taken.reset_at


def test_what_is_left_is_returned_to_a_window_that_has_begun_with_its_batch(make, left, name, db):
    local = make.borrow(make(), **LONG)
    for _ in range(15):
        local.limit()
    assert RateLimiter({name: DAILY}, db=db).reset(name)
    local.limit()  # the first of 16
    local.close()
    assert left() == 999


def test_a_call_may_get_what_the_batch_before_it_returns(make, left, name, db, monkeypatch):
    local = make.borrow(make(), **LONG)
    for _ in range(17):
        local.limit()
    RateLimiter({name: DAILY}, db=db).limit(name, count=left())
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 60)
    assert local.limit()
    monkeypatch.undo()
    local.close()


def test_close_waits_for_what_is_being_returned(kind, make, left, name, db):
    local = make.borrow(make(), borrow_for=3)
    spent = 0
    for _ in range(5):  # of batches of 1, 2 and 4, as a rule
        assert local.limit()
        spent += 1
    with psycopg.connect() as holder:
        RateLimiter({name: DAILY}, db=holder).limit(name)
        waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%rl_credit%'"
        until(lambda: db.execute(waits).fetchall(), make.sleep)

        def release(is_closed):
            assert not is_closed
            holder.rollback()

        if kind == "sync":
            with ThreadPoolExecutor(1) as executor:
                closing = executor.submit(local.close)
                time.sleep(0.1)
                release(closing.done())
        else:

            async def close():
                closing = asyncio.ensure_future(local.of.close())
                await asyncio.wait([closing], timeout=0.1)
                release(closing.done())
                await closing

            local.run(close())
    assert left() == 1000 - spent


def test_a_denial_is_thrown_waited_for_and_remembered(make, name, db):
    local = make.borrow(make(fixed_window(3, DAY), remember_denials={"at_most": 3600}), **LONG)
    for _ in range(3):
        assert local.limit()
    assert not local.limit()
    asked = len(make.asked)
    assert not local.limit() and len(make.asked) == asked
    with pytest.raises(RateLimitExceeded):
        local.limit(throws=True)
    bucket = make.borrow(make(token_bucket(10, "1 second", capacity=1)), **LONG)
    for _ in range(3):
        assert bucket.limit("other", wait=60)
    local.close()
    bucket.close()


def test_what_can_not_be_asked_fails_or_opens(make, name):
    limiter = make(options="-c lock_timeout=50")
    closed, opens = make.borrow(limiter, **LONG), make.borrow(limiter, on_error="open", **LONG)
    with psycopg.connect() as holder:
        RateLimiter({name: DAILY}, db=holder).limit(name)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            closed.limit()
        result = opens.limit()
        assert result.ok and isinstance(result.error, psycopg.errors.LockNotAvailable)
        assert not closed.take() and not opens.take()
        holder.rollback()
    assert closed.limit().error is None and opens.limit().error is None


def test_what_can_not_be_borrowed_is_refused(make, name, db, kind):
    limiter = make()
    for options in ({"borrow_for": 0}, {"borrow_for": 61}, {"borrow_for": float("nan")}, {"max": 0}, {"max": 1.5}):
        with pytest.raises(ValueError):
            limiter.borrow(name, **options)
    with pytest.raises(ValueError, match="sliding log can't be borrowed"):
        limiter.borrow("other", config=sliding_log(1, DAY))
    with pytest.raises(UnknownLimit):
        limiter.borrow("other")
    local = make.borrow(limiter, **LONG)
    for count in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="count is"):
            local.limit(count=count)
    if kind == "sync":
        with db.transaction():
            with pytest.raises(TypeError, match="transaction"):
                RateLimiter({name: DAILY}, db=db).borrow(name).limit()
        local = RateLimiter({name: DAILY}, db=db).borrow(name, **LONG)
        for _ in range(17):
            local.limit()
        with db.transaction():
            local.close()
            assert db.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)


def test_requests_are_served_of_what_is_borrowed(name):
    with borrowing.pool:
        assert [borrowing.serve(name) for _ in range(20)] == [200] * 20
        borrowing.requests.close()


def test_a_dry_run_is_asked_each_time(make, left):
    local = make.borrow(make({**fixed_window(5, DAY), "enforce": False}), **LONG)
    for _ in range(20):
        assert local.limit()
    assert len(make.asked) == 20
    make.together(local, 3, key="at once")
    assert left({**fixed_window(5, DAY), "enforce": False}, "at once") == 5 - 3


def test_nothing_is_returned_of_no_limit(make):
    local = make.borrow(make({"kind": "unlimited"}), **LONG)
    for _ in range(5):  # of batches of 1, 2 and 4
        assert local.limit()
    assert local.take() and not local._sweep(every=True)


def test_a_child_that_is_forked_has_none_of_the_tokens(name):
    with ConnectionPool(min_size=1) as pool:
        local = RateLimiter({name: DAILY}, db=pool).borrow(name, **LONG)
        while not (local.take() and local.take()):
            local.limit()
        child = os.fork()
        if child == 0:
            os._exit(int(local.take()))
        assert os.waitpid(child, 0)[1] == 0
        assert local.take()
        local.close()


# Processes. What they borrow comes by the same calls on the file.

once = pytest.mark.edition("extension")
BORROW = {"borrow_for": 0.15, "max": 50}
AHEAD = [0, 3600, -3600, 86400]


@contextmanager
def storm(tmp_path, name, config, kind):
    """Lets processes spend for some seconds, while one after the other is stopped for a while, and two are killed."""
    files, processes = [], []

    def start(ahead):
        files.append(tmp_path / str(len(files)))
        given = {"name": name, "config": config, "kind": kind, "options": BORROW, "ahead": ahead, "file": str(files[-1])}
        worker = Path(__file__).parent / "borrowing" / "worker.py"
        process = subprocess.Popen(
            [sys.executable, worker, json.dumps(given)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout.readline() == "begun\n"
        return process

    try:
        all = [start(ahead) for ahead in AHEAD]
        for n in range(16):
            which = n % len(all)
            all[which].send_signal(signal.SIGSTOP)
            time.sleep(0.1 + random.random() * 3 * BORROW["borrow_for"])
            if n % 8 == 7:
                all[which].kill()
                all[which].wait()
                all[which] = start(AHEAD[which])
            else:
                all[which].send_signal(signal.SIGCONT)
        for process in all:
            process.communicate("stop\n", timeout=60)
            assert process.returncode == 0
        lines = [line.split() for file in files if file.exists() for line in file.read_text().splitlines()]
        yield sorted(((float(a), float(b), int(c)) for a, b, c in lines), key=lambda each: each[1])
    finally:
        for process in processes:
            process.kill()


@once
def test_processes_that_die_and_are_stopped_spend_no_more_of_a_window(tmp_path, name, kind):
    with storm(tmp_path, name, {"kind": "fixed window", "rate": 400, "period": 500, "start": 0}, kind) as spends:
        windows = Counter()
        for before, after, count in spends:
            if before // 0.5 == after // 0.5:
                windows[before // 0.5] += count
        assert windows and max(windows.values()) <= 400


@once
def test_such_processes_spend_no_more_of_a_bucket_than_it_gives_and_the_batches_that_are_out(tmp_path, name, kind):
    with storm(tmp_path, name, {"kind": "token bucket", "rate": 1000, "period": 1000, "capacity": 200}, kind) as spends:
        worst, since = 0, spends[0][0]
        while since < spends[-1][1]:
            all = 0
            for before, after, count in spends:
                if before >= since:
                    all += count
                    worst = max(worst, all - 1000 * (after - since))
            since += 0.02
        assert worst <= 200 + len(AHEAD) * BORROW["max"]


@once
def test_a_process_that_dies_loses_its_batch_at_most(tmp_path, name, kind, left):
    config = {"kind": "fixed window", "rate": 1_000_000, "period": 86_400_000, "start": "first request"}
    with storm(tmp_path, name, config, kind) as spends:
        lost = 1_000_000 - left(config) - sum(count for _, _, count in spends)
        # A process may die between a spend and its line, in each of its threads.
        assert 0 <= lost <= 2 * (BORROW["max"] + 2 * 3)
