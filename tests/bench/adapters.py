"""Measures what a limiter costs an application: our stores next to those of the same limiter, and to no limiter.

Owns how a store is measured; adapters/apps.* and the crate's bench/application.rs are the applications, report.py
draws. Each application runs alone, on a port of its own, and is asked by wrk, which takes little of the CPU that all
share. A round asks every store once, so what disturbs the machine falls on all of them. It reports and never judges.
Run by scripts/bench.
"""

import argparse
import http.client
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import report
from bench import Redis, check, output

HERE = Path(__file__).parent / "adapters"
CONNECTIONS, THREADS = (16, 64), 10  # of wrk; of gunicorn, as many as a pool has connections
LOADS = {"admitted": (1024, 200), "denied": (1, 429)}  # how many keys, and the status of every answer
# Stores by their paths, in the order of the rows.
STORES = {
    "none": "no limiter",
    "table": "in the table",
    "alone": "in the table, a statement each",
    "remembered": "in the table, denials remembered",
    "memory": "in memory",
    "memory_alone": "in memory, a statement each",
    "saved": "in memory, saved",
    "own": "its own store in memory",
    "redis": "its store in Redis",
    "postgres": "its store in PostgreSQL",
    "blocked": "the same, denials in memory",
}
ONLY_ADMITTED, ONLY_DENIED = ["none"], ["remembered", "blocked"]
GUNICORN = ["gunicorn", "--threads", str(THREADS), "--bind", "127.0.0.1:{port}", "--log-level", "warning"]
UVICORN = ["uvicorn", "--factory", "--port", "{port}", "--log-level", "warning"]
# The limiters by the names of their columns: the command of the application, and what it lacks of STORES.
ALONE = ["alone", "memory_alone"]  # threads share no statements, and pyrate-limiter asks one at a time
OTHERS = ["own", "redis", "postgres", "blocked"]  # the layer for tower stores for no other limiter
APPS = {
    "express": (["node", "apps.mjs", "express", "{port}"], ["blocked"]),
    "Fastify": (["node", "apps.mjs", "fastify", "{port}"], ["saved", "postgres", "blocked"]),
    "flexible": (["node", "apps.mjs", "flexible", "{port}"], ["saved"]),
    "Django REST": ([*GUNICORN, "apps:django()"], [*ALONE, "saved", "blocked"]),
    "FastAPI": ([*UVICORN, "apps:fastapi"], [*ALONE, "blocked"]),
    "Flask": ([*GUNICORN, "apps:flask()"], [*ALONE, "saved", "postgres", "blocked"]),
    "axum sqlx": (["{rust}", "sqlx", "{port}"], ["saved", *OTHERS]),
    "axum deadpool": (["{rust}", "deadpool", "{port}"], ["saved", *OTHERS]),
}
# The tables of docs/performance.md: what a cell shows of a line, for each load, and each number of connections.
RATES = "requests a second"
CELLS = {
    RATES: lambda line: f"{median(line['rates']):,.0f}",
    "99th percentile in ms": lambda line: f"{median(line['p99s']):.1f}",
    "µs of server CPU a request": lambda line: f"{median(line['cpus']):.0f}",
}


def cpu(roots):
    """The nanoseconds that these processes and their children have run, by process."""
    spent = {}
    for root in roots:
        for process in [root, *Path(f"/proc/{root}/task/{root}/children").read_text().split()]:
            try:
                threads = Path(f"/proc/{process}/task").iterdir()
                spent[process] = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
            except FileNotFoundError:
                pass  # it has ended
    return spent


def until(condition, otherwise):
    """Waits until that is so; ends with the error after a minute."""
    ends = time.monotonic() + 60
    while not condition():
        check(time.monotonic() < ends, otherwise)
        time.sleep(0.01)


def status(url):
    """The status of a request with a key of every load; None if none answers."""
    address, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", f"/{path}", headers={"x-key": "key-1"})
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


@contextmanager
def running(command, environment, log):
    """The address of an application, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [word.format(port=port, rust=environment["RUST"]) for word in command]
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=HERE, env=environment, stdout=out, stderr=out)
        try:
            address = f"http://127.0.0.1:{port}"
            answers = lambda: process.poll() is not None or status(f"{address}/none/admitted") == 200
            until(answers, f"{' '.join(command)}: see {log}")
            check(process.poll() is None, f"{' '.join(command)} has ended: see {log}")
            yield address
        finally:
            process.terminate()
            process.wait()


def measure(url, load, connections, seconds, roots):
    """Requests a second, the 99th percentile in milliseconds, and the microseconds of the servers' CPU a request."""
    keys, expected = LOADS[load]
    before = cpu(roots)
    how = ["-t", "1", "-c", str(connections), "-d", str(seconds), "-s", str(HERE / "load.lua")]
    answer = json.loads(output("wrk", *how, url, "--", str(keys)).splitlines()[-1])
    after = cpu(roots)
    return answer, (
        answer["requests"] / answer["us"] * 1e6,
        answer["p99"] / 1000,
        sum(spent - before.get(process, 0) for process, spent in after.items()) / answer["requests"] / 1000,
    )


def application(name, options, environment, roots):
    """The works of an application, one a load: a line a store."""
    command, lacks = APPS[name]
    asked = [(store, load) for store in STORES if store not in lacks for load in LOADS]
    asked = [(s, load) for s, load in asked if s not in (ONLY_DENIED if load == "admitted" else ONLY_ADMITTED)]
    cells = [(*cell, connections) for connections in options.connections for cell in asked]
    measured = {cell: [] for cell in cells}
    with running(command, environment, options.results / f"adapters-{name}.log".replace(" ", "-")) as address:
        for store, load in asked:  # one makes its tables later than it can be asked
            until(lambda: status(f"{address}/{store}/{load}") == LOADS[load][1], f"{name}, {store} is not {load}")
        for repeat in range(-1, options.repeats):  # the first fills the stores
            for store, load, connections in cells[:: -1 if repeat % 2 else 1]:
                url = f"{address}/{store}/{load}"
                answer, figures = measure(url, load, connections, options.seconds, roots)
                if repeat < 0:
                    continue
                measured[store, load, connections].append(figures)
                refused = answer["requests"] if load == "denied" else 0
                right = answer["failed"] == 0 and answer["refused"] == refused and status(url) == LOADS[load][1]
                check(right, f"{name}, {store}, {load}: {answer}, {status(url)}")
    works = []
    for load, connections in [(load, connections) for load in LOADS for connections in options.connections]:
        of_load = {store: figures for (store, *of), figures in measured.items() if of == [load, connections]}
        rates = {store: [rate for rate, _, _ in figures] for store, figures in of_load.items()}
        lines = []
        for store in sorted(rates, key=lambda store: store != "table"):  # all are compared with the table
            _, p99s, cpus = map(list, zip(*of_load[store]))
            first = rates["table"] if store != "table" else None
            line = report.line(STORES[store], rates[store], first, None, "requests/s", cpus)
            lines.append(line | {"p99s": p99s, "p99": f"{median(p99s):.1f} ms"})
        title = f"{name}, {load}, {LOADS[load][0]:,} key{'s' * (load == 'admitted')}, {connections} connections"
        works.append({"name": f"{name} {load} {connections}", "title": title, "unit": "requests/s", "lines": lines})
    return works


def summary(works, connections):
    """The tables of docs/performance.md: a column an application, a row a store; "–": it doesn't have the store."""
    lines = {work["name"]: {line["label"]: line for line in work["lines"]} for work in works}
    names = [name for name in APPS if f"{name} denied {connections[0]}" in lines]
    parts = []
    for of, load, (what, show) in [(of, load, cell) for of in connections for load in LOADS for cell in CELLS.items()]:
        # Of denied requests, and of more connections, the page has the rates alone.
        if load == "denied" and what != RATES or of != connections[0] and (load, what) != ("admitted", RATES):
            continue
        rows = []
        for label in STORES.values():
            row = [lines[f"{name} {load} {of}"].get(label) for name in names]
            if any(row):
                rows.append([label, *(show(line) if line else "–" for line in row)])
        parts.append(report.table([f"{what}, {load}, {of} connections", *names], rows))
    return "\n\n".join(parts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, help="where psql is")
    parser.add_argument("--socket", required=True, help="PostgreSQL's")
    parser.add_argument("--package", required=True, help="the folder of our built package for Node")
    parser.add_argument("--peers", required=True, help="the folder of the stores of others for Node")
    parser.add_argument("--python", required=True, help="the folder of the programs of Python")
    parser.add_argument("--rust", required=True, help="the application in axum, built")
    parser.add_argument("--results", required=True, type=Path, help="the folder for adapters.md and .json")
    parser.add_argument("--page", type=Path, help="docs/performance.md, to put the tables there, too")
    parser.add_argument("--apps", nargs="+", default=list(APPS), choices=list(APPS), help="the applications to run")
    parser.add_argument("--connections", nargs="+", type=int, default=list(CONNECTIONS), help="of wrk")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=1, help="of each measurement")
    options = parser.parse_args()

    psql = lambda sql, database="bench": output(
        f"{options.bin}/psql", "-XAtq", "-h", options.socket, "-U", "postgres", "-c", sql, database
    ).strip()
    psql("CREATE DATABASE bench", "postgres")
    psql("CREATE EXTENSION ratelimit")
    postmaster = int(psql("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)"))
    with tempfile.TemporaryDirectory(prefix="ratelimit-redis.") as folder:
        redis = Redis(folder)
        environment = os.environ | {
            "PATH": f"{options.python}:{os.environ['PATH']}", "NODE_ENV": "production", "PYTHONDONTWRITEBYTECODE": "1",
            "PACKAGE": options.package, "PEERS": options.peers, "RUST": options.rust, "REDIS": redis.socket,
            "PGHOST": options.socket, "PGUSER": "postgres", "PGDATABASE": "bench",
        }
        works = []
        try:
            for name in options.apps:
                for work in application(name, options, environment, [postmaster, redis.process.pid]):
                    works.append(work)
                    print(f"{work['title']}\n{report.work_table(work)}\n", flush=True)
        finally:
            redis.stop()
    settings = {
        "cores": len(os.sched_getaffinity(0)), "repeats": options.repeats, "seconds of each": options.seconds,
        "node": output("node", "--version").strip(), "python": platform.python_version(), "redis": redis.version,
    } | {name: psql(f"SHOW {name}") for name in ("server_version", "fsync", "synchronous_commit")}
    tables = summary(works, options.connections)
    print(tables)
    if options.page:
        # From the first row to what is no table.
        old = r"\| requests a second, admitted[\s\S]*?(?=\n\n[^|])"
        page, found = re.subn(old, lambda _: tables, options.page.read_text(), count=1)
        check(found, f"{options.page} has no such table")
        options.page.write_text(page)
    detail = [f"### {work['title']}\n\n{report.work_table(work)}" for work in works]
    parts = [tables, *detail, "### settings\n\n" + "\n".join(f"- {name}: {value}" for name, value in settings.items())]
    (options.results / "adapters.md").write_text("\n\n".join(parts) + "\n")
    (options.results / "adapters.json").write_text(report.as_json(settings, works))


if __name__ == "__main__":
    main()
