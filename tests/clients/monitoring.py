"""Prometheus and Grafana, as docs/monitoring.md sets them up: prometheus-postgres-exporter with the queries
of monitoring/, scraped, and each metric of the dashboard and of the alerts found in its output. On the SQL file no
query fails, and what has no metric there says so.

Connects with libpq's variables, as the role of monitored.sql.
The argument is the exporter's program.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import psycopg

MONITORING = Path(__file__).parents[2] / "monitoring"
FILE = "file"  # the database with the SQL file


def scrape(queries, *options, databases):
    """Returns the exporter's samples of the rate limiter, labels and value, by metric."""
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write(queries)
        file.flush()
        return scraped(f"--extend.query-path={file.name}", *options, databases=databases)


def scraped(*options, databases):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    host, port, user = (os.environ[f"PG{name}"] for name in ("HOST", "PORT", "USER"))
    sources = [f"host={host} port={port} user={user} dbname={database} sslmode=disable" for database in databases]
    exporter = subprocess.Popen(
        [
            sys.argv[1], f"--web.listen-address={address}", "--disable-default-metrics",
            "--disable-settings-metrics", *options,
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
            connection.execute("SELECT rl_hold('held', 'monitored', %s, %s)", (tokens, ttl))
    time.sleep(0.01)


def take(database, calls):
    """Calls; all but three are denied."""
    with psycopg.connect(dbname=database, autocommit=True) as connection:
        for _ in range(calls):
            connection.execute("SELECT rl_limit('watched', 'monitored')")


def of(samples, metric, limit):
    """The values of a limit, by database."""
    found = {}
    for labels, value in samples[metric]:
        if labels["limit"] == limit:
            assert labels["database"] not in found, (metric, labels)
            found[labels["database"]] = value
    return found


def metrics(text):
    return set(re.findall(r"ratelimit_(?:calls|holds|keys|memory)_\w+", text))


def main():
    own = os.environ["PGDATABASE"]
    for database, calls in (own, 5), ("others", 4), (FILE, 5):
        take(database, calls)
        hold(database)
    everywhere = {own, "others", FILE}

    # From one database the exporter discovers the others; and all named, for which its own collectors, which ask
    # the server more than once then, have to be off. The last has the SQL file, alone at the end.
    queries = (MONITORING / "postgres_exporter.yml").read_text()
    keys = (MONITORING / "keys.yml").read_text()
    off = ("--no-collector.bgwriter", "--no-collector.database")
    discovered = scrape(
        queries, "--auto-discover-databases", f"--include-databases={','.join(everywhere)}", databases=[own]
    )
    listed = scrape(queries + keys, *off, databases=sorted(everywhere))
    on_file = scrape(queries + keys, *off, databases=[FILE])
    for samples in listed, discovered:
        for name, (first, second) in {"allowed": (3, 3), "denied": (2, 1), "tokens": (3, 3)}.items():
            found = of(samples, f"ratelimit_calls_{name}_total", "watched")
            assert found == {own: first, "others": second}, (name, found)
        assert all(value == 0 for _, value in samples["ratelimit_calls_denied_in_dry_run_total"])
        (_, used), (_, room) = samples["ratelimit_memory_keys"][0], samples["ratelimit_memory_room"][0]
        assert room >= used >= 0
    for samples, databases in (listed, everywhere), (discovered, everywhere), (on_file, {FILE}):
        for name, value in ("tokens", 40), ("expired", 1):
            assert of(samples, f"ratelimit_holds_{name}", "held") == dict.fromkeys(databases, value), name
    for samples, databases in (listed, everywhere), (on_file, {FILE}):
        for name in "stored", "limited":
            assert of(samples, f"ratelimit_keys_{name}", "watched") == dict.fromkeys(databases, 1), name
        assert of(samples, "ratelimit_keys_limited", "held") == dict.fromkeys(databases, 0)
    # The memory is the server's: once, where the exporter knows that they are databases of one server.
    assert [labels["database"] for labels, _ in discovered["ratelimit_memory_room"]] == [own]
    assert len({room for _, room in listed["ratelimit_memory_room"]}) == 1

    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queried = metrics(json.dumps(dashboard))
    assert len(expressions) >= 8 and queried == set(listed), queried ^ set(listed)
    for expression in expressions:
        # Each sum keeps apart what two databases count, and the memory is one for all of a server's databases.
        grouped = set(re.findall(r"(?:sum|max) by \([^)]*\)", expression))
        expected_group = "max by (server)" if "ratelimit_memory" in expression else "sum by (database, limit)"
        assert grouped == {expected_group}, expression
    for panel in dashboard["panels"]:
        empty = {metric in on_file for target in panel["targets"] for metric in metrics(target["expr"])} == {False}
        assert ("SQL file" in panel["description"]) == empty, (panel["title"], panel["description"])
    # The menus of databases and limits list those of the SQL file, too.
    for menu in dashboard["templating"]["list"][1:]:
        assert metrics(menu["query"]["query"]) & set(on_file), menu["name"]

    # The alerts and their tests name metrics that there are, and their tests the labels of each.
    rules = (MONITORING / "alerts.yml").read_text()
    alerts = metrics(rules)
    assert len(alerts) >= 4 and alerts <= set(listed), alerts - set(listed)
    # docs/monitoring.md has a row for each alert, whose last cell says whether it fires with the SQL file.
    page = (MONITORING.parent / "docs/monitoring.md").read_text()
    for name, rule in re.findall(r"- alert: (\w+)\n((?:(?!- alert:).)*)", rules, re.DOTALL):
        row = re.search(rf"^\| `{name}` \|.*$", page, re.MULTILINE)[0]
        assert row.split("|")[-2].strip() == ("yes" if metrics(rule) <= set(on_file) else "no"), row
    tested = re.findall(r"series: '(\w+)\{(.*)\}'", (Path(__file__).parent / "alerts.yml").read_text())
    assert alerts <= {metric for metric, _ in tested}, tested
    for metric, labels in tested:
        named = set(re.findall(r'(\w+)="', labels))
        assert all(named == set(sample) for sample, _ in listed[metric]), (metric, labels)


main()
