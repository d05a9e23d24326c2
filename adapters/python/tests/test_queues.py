"""The worker of procrastinate that docs/queues.md shows: three of them, of which one is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from conftest import ON_FILE
from examples import with_procrastinate
from psycopg_pool import AsyncConnectionPool

from postgres_rate_limit import AsyncRateLimiter

ADMITTED, BACKLOG = 20, 60
HERE = Path(__file__).parent
WORKER = """
import asyncio, os, psycopg
from datetime import timedelta
from examples import with_procrastinate as example
from postgres_rate_limit import AsyncRateLimiter

example.limiter = AsyncRateLimiter(["reports"], defined=True)
hold = example.limiter.hold
example.limiter.hold = lambda *given, **others: hold(*given, ttl=4 if "initech" in given else 600, **others)

async def report(tenant, body):
    async with await psycopg.AsyncConnection.connect(autocommit=True) as connection:
        noted = "INSERT INTO runs SELECT %s, %s, %s, 1 + count(*) FROM runs WHERE body = %s RETURNING try"
        (nth,) = await (await connection.execute(noted, [tenant, body, os.getpid(), body])).fetchone()
    if nth == 1 and body == "hang":
        await asyncio.sleep(3600)
    if nth == 1 and body == "fail":
        raise RuntimeError("the first time")

example.report.func = report
run = example.app.run_worker_async
example.app.run_worker_async = lambda: run(fetch_job_polling_interval=0.5, update_heartbeat_interval=1)
asyncio.run(example.work())
"""


@pytest.fixture
def database(monkeypatch):
    """A database with the limiter and the tables of procrastinate, and a connection to it."""
    name = f"queues_{uuid4().hex}"
    with psycopg.connect("user=postgres dbname=postgres", autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        server.execute(f"ALTER DATABASE {name} SET search_path = public, ratelimit")
        monkeypatch.setenv("PGUSER", "postgres")
        monkeypatch.setenv("PGDATABASE", name)
        with psycopg.connect(autocommit=True) as connection:
            if ON_FILE:
                connection.execute((HERE.parent / "postgres_rate_limit" / "ratelimit.sql").read_text())
            else:
                connection.execute("CREATE EXTENSION ratelimit")
            schema = with_procrastinate.app.schema_manager.get_schema()
            connection.execute(schema)
            connection.execute("CREATE TABLE runs (tenant text, body text, pid int, try int)")
            yield connection
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_procrastinate_runs_what_each_window_admits(database):
    def rows(query):
        return database.execute(query).fetchall()

    def until(query, wanted):
        for _ in range(1200):
            if (found := rows(query)) == wanted:
                return
            time.sleep(0.05)
        assert found == wanted, query

    window = f"rl_fixed_window({ADMITTED}, '1 day', first_request => true, max_reserved => 1000)"
    rows(f"SELECT rl_define('reports', {window})")
    bodies = [("acme", f"job {n}") for n in range(BACKLOG)] + [("initech", "hang")]
    bodies += [("globex", body) for body in ("globex 1", "fail", "globex 3")]
    with database.cursor() as cursor:
        for each in bodies:
            cursor.execute(
                "INSERT INTO procrastinate_jobs (queue_name, task_name, args)"
                " VALUES ('default', %s, jsonb_build_object('tenant', %s::text, 'body', %s::text))",
                [with_procrastinate.report.name, *each],
            )
    workers = []

    def start():
        workers.append(subprocess.Popen([sys.executable, "-c", WORKER], cwd=HERE, stderr=subprocess.DEVNULL))

    try:
        for _ in range(3):
            start()
        hung = "SELECT count(*) FROM runs WHERE body = 'hang'"
        until(hung, [(1,)])
        ((pid,),) = rows("SELECT pid FROM runs WHERE body = 'hang'")
        os.kill(pid, signal.SIGKILL)
        start()

        until("SELECT remaining, held FROM rl_status('reports', 'initech')", [(ADMITTED, 0)])  # its token is back
        # As a task of the application does for jobs of a worker without a heartbeat.
        again = "SELECT procrastinate_retry_job_v2(id, now(), NULL, NULL, NULL) FROM procrastinate_jobs"
        rows(f"{again} WHERE args ->> 'body' = 'hang'")
        ran = "SELECT count(*) FILTER (WHERE tenant = 'acme'), count(*) FILTER (WHERE tenant = 'globex') FROM runs"
        waiting = """SELECT count(*) FROM procrastinate_jobs
            WHERE status = 'todo' AND scheduled_at > now() + interval '12 hours'"""
        unfinished = "SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'"
        miscounted = """SELECT args FROM procrastinate_jobs
            WHERE attempts <> (status = 'succeeded')::int AND args ->> 'body' NOT IN ('hang', 'fail')"""
        started = "SELECT count(*) FROM procrastinate_events WHERE type = 'started'"
        runs, fetches = ADMITTED, BACKLOG + 4 + 2
        while True:
            waits = BACKLOG - runs
            until(ran, [(runs, 4)])
            until(waiting, [(waits,)])
            until(unfinished, [(waits,)])
            assert rows(ran) == [(runs, 4)] and rows(started) == [(fetches,)] and rows(miscounted) == []
            if waits == 0:
                break
            runs, fetches = min(runs + ADMITTED, BACKLOG), fetches + waits
            with database.transaction():
                rows("SELECT rl_reset('reports', 'acme')")
                database.execute("UPDATE procrastinate_jobs SET scheduled_at = NULL WHERE status = 'todo'")
        twice = rows("SELECT body FROM runs GROUP BY body HAVING count(*) > 1 ORDER BY body")
        assert twice == [("fail",), ("hang",)]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def test_a_job_that_waits_gives_its_token_back_when_it_is_cancelled(database, monkeypatch):
    window = "rl_fixed_window(1, '1 day', first_request => true, max_reserved => 9)"
    database.execute(f"SELECT rl_define('reports', {window}), rl_limit('reports', 'acme')")
    monkeypatch.setattr(with_procrastinate, "limiter", AsyncRateLimiter(["reports"], defined=True))
    reserved = "SELECT round(extract(epoch FROM scheduled_at - now()) / 86400) FROM procrastinate_jobs WHERE id = %s"

    async def run():
        app = with_procrastinate.app
        with_procrastinate.pool = AsyncConnectionPool(open=False)
        async with with_procrastinate.pool, app.open_async():

            async def queue(body):
                """The job, and for which day it has a token."""
                id = await with_procrastinate.report.defer_async(tenant="acme", body=body)
                await app.run_worker_async(wait=False)
                return id, database.execute(reserved, [id]).fetchone()[0]

            first, second = await queue("first"), await queue("second")
            assert (first[1], second[1]) == (1, 2)
            assert await with_procrastinate.cancel(second[0])
            assert not await with_procrastinate.cancel(second[0])
            assert (await queue("third"))[1] == 2
            assert not await with_procrastinate.cancel(10**9)

    asyncio.run(run())
