"""Prometheus and Grafana, as docs/monitoring.md sets them up: prometheus-postgres-exporter with the queries
of monitoring/, scraped, and each metric of the dashboard and of the alerts found in its output.

Connects with libpq's variables, as a role that has EXECUTE on rl_stats and rl_memory, and SELECT on columns of rl_holds.
The argument is the exporter's program.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psycopg

MONITORING = Path(__file__).parents[2] / "monitoring"


def scrape(*options, databases):
    """Returns the exporter's samples of the rate limiter, labels and value, by metric."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    host, port, user = (os.environ[f"PG{name}"] for name in ("HOST", "PORT", "USER"))
    sources = [f"host={host} port={port} user={user} dbname={database} sslmode=disable" for database in databases]
    exporter = subprocess.Popen(
        [
            sys.argv[1], f"--web.listen-address={address}", "--disable-default-metrics",
            "--disable-settings-metrics", f"--extend.query-path={MONITORING}/postgres_exporter.yml", *options,
        ],
        env={"DATA_SOURCE_NAME": ",".join(sources)},
    )
    try:
        for _ in range(100):
            try:
                text = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
                break
            except urllib.error.HTTPError as error:
                raise AssertionError(f"HTTP {error.code}: {error.read().decode()}") from error
            except urllib.error.URLError:
                assert exporter.poll() is None, "the exporter did not start"
                time.sleep(0.1)
    finally:
        exporter.terminate()
        exporter.wait()
    assert re.search(r"^pg_exporter_last_scrape_error 0$", text, re.MULTILINE), "a query failed"
    samples = {}
    for metric, labels, value in re.findall(r"^(ratelimit_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        samples.setdefault(metric, []).append((dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)))
    return samples


def hold(database):
    """Leaves a hold of 40 tokens, and one that has expired."""
    with psycopg.connect(dbname=database, autocommit=True) as connection:
        for tokens, ttl in (40, "1 hour"), (5, "1 millisecond"):
            connection.execute("SELECT rl_hold('llmTokens', 'monitored', %s, %s)", (tokens, ttl))
    time.sleep(0.01)


def take(database, calls):
    """Calls, and what they make of the counters: allowed, denied and tokens."""
    with psycopg.connect(dbname=database, autocommit=True) as connection:
        for _ in range(calls):
            connection.execute("SELECT rl_limit('sendMessage', 'monitored')")
        query = "SELECT allowed, denied, tokens FROM rl_stats() WHERE name = 'sendMessage'"
        return connection.execute(query).fetchone()


def main():
    own = os.environ["PGDATABASE"]
    expected = {own: take(own, 5), "others": take("others", 4)}
    assert expected["others"] == (3, 1, 3), expected

    for database in expected:
        hold(database)

    # From one database the exporter discovers the others; and both named, for which its own collectors, which ask
    # the server twice then, have to be off.
    discovered = scrape("--auto-discover-databases", f"--include-databases={own},others", databases=[own])
    listed = scrape("--no-collector.bgwriter", "--no-collector.database", databases=[own, "others"])
    for samples in listed, discovered:
        found = {database: [] for database in expected}
        for name in ("allowed", "denied", "tokens"):
            for labels, value in samples[f"ratelimit_calls_{name}_total"]:
                if labels["limit"] == "sendMessage":
                    found[labels["database"]].append(value)
        assert {database: tuple(values) for database, values in found.items()} == expected, (found, expected)
        assert all(value == 0 for _, value in samples["ratelimit_calls_denied_in_dry_run_total"])
        for name, expected_value in ("tokens", 40), ("expired", 1):
            held = {labels["database"]: value for labels, value in samples[f"ratelimit_holds_{name}"]}
            assert held == dict.fromkeys(expected, expected_value), (name, held)
        (_, keys), (_, room) = samples["ratelimit_memory_keys"][0], samples["ratelimit_memory_room"][0]
        assert room >= keys >= 0
    # The memory is the server's: once, where the exporter knows that they are databases of one server.
    assert [labels["database"] for labels, _ in discovered["ratelimit_memory_room"]] == [own]
    assert len({room for _, room in listed["ratelimit_memory_room"]}) == 1

    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queried = set(re.findall(r"ratelimit_\w+", json.dumps(dashboard)))
    assert len(expressions) >= 8 and queried == set(listed), queried ^ set(listed)
    for expression in expressions:
        # Each sum keeps apart what two databases count, and the memory is one for all of a server's databases.
        grouped = set(re.findall(r"(?:sum|max) by \([^)]*\)", expression))
        expected_group = "max by (server)" if "ratelimit_memory" in expression else "sum by (database, limit)"
        assert grouped == {expected_group}, expression

    # The alerts and their tests name metrics that there are, and their tests the labels of each.
    alerts = set(re.findall(r"ratelimit_(?:calls|memory)_\w+", (MONITORING / "alerts.yml").read_text()))
    assert len(alerts) >= 4 and alerts <= set(listed), alerts - set(listed)
    tested = re.findall(r"series: '(\w+)\{(.*)\}'", (Path(__file__).parent / "alerts.yml").read_text())
    assert alerts <= {metric for metric, _ in tested}, tested
    for metric, labels in tested:
        named = set(re.findall(r'(\w+)="', labels))
        assert all(named == set(sample) for sample, _ in listed[metric]), (metric, labels)


main()
