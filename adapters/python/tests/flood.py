"""Measures remember_denials: one key floods, while other keys call now and then. Prints requests a second and the CPU time
of the server a request, without and with it. No test: it takes some seconds, and depends on the machine. Server and
client are on one machine, and the database is that of PGHOST, PGDATABASE and PGUSER.

    PGHOST=/tmp/ratelimit.X PGUSER=postgres PGDATABASE=adapters python tests/flood.py
"""

import os
import sys
import threading
import time
from uuid import uuid4

from limits import parse
from limits.strategies import FixedWindowRateLimiter
from psycopg_pool import ConnectionPool

from postgres_rate_limit import HOUR, RateLimiter, fixed_window
from postgres_rate_limit.limits import RateLimitStorage

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 3
THREADS = 4


def cpu(pids):
    """Seconds of these processes."""
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as stat:
            ticks += sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def flood(pool, call):
    """Requests a second, and CPU time of the server for each, in µs."""
    with pool.connection() as connection:
        name = connection.execute("SELECT current_setting('application_name')").fetchone()[0]
        find = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
        pids = [pid for (pid,) in connection.execute(find, [name])]
    ends, counts = time.monotonic() + SECONDS, []

    def run():
        n = 0
        while time.monotonic() < ends:
            n += 1
            call("other" if n % 1000 == 0 else "flood")
        counts.append(n)

    before = cpu(pids)
    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    requests = sum(counts)
    return requests / SECONDS, (cpu(pids) - before) / requests * 1e6


def client(remember):
    limit = f"flood {uuid4().hex}"
    kwargs = {"application_name": limit, "autocommit": True}
    with ConnectionPool(min_size=THREADS, max_size=THREADS, kwargs=kwargs) as pool:
        pool.wait()
        limiter = RateLimiter({limit: fixed_window(10, HOUR)}, db=pool, remember_denials=remember)
        return flood(pool, lambda key: limiter.limit(limit, key))


def storage(remember):
    name = f"flood {uuid4().hex}"
    kwargs = {"application_name": name}
    made = RateLimitStorage(name=name, min_size=THREADS, max_size=THREADS, kwargs=kwargs, remember_denials=remember)
    made.pool.open(wait=True)
    limits, item = FixedWindowRateLimiter(made), parse("10 per hour")
    answer = flood(made.pool, lambda key: limits.hit(item, key))
    made.pool.close()
    return answer


for what in (client, storage):
    (slow, dear), (fast, cheap) = what(False), what(True)
    print(f"{what.__name__}: {slow:,.0f} and {fast:,.0f} requests a second, {fast / slow:.0f} times as many;", end=" ")
    print(f"{dear:.1f} and {cheap:.2f} µs of the server's CPU a request, {1 - cheap / dear:.1%} less")
