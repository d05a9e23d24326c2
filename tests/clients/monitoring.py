"""Prometheus and Grafana, as docs/monitoring.md sets them up: prometheus-postgres-exporter with the queries
of monitoring/, scraped, and each metric of the dashboard found in what it says.

Connects with libpq's variables, as a role that has EXECUTE on rl_stats and rl_memory. EXPORTER is the
exporter's program.
"""

import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import psycopg

MONITORING = Path(__file__).parents[2] / "monitoring"


def scrape(address):
    """The samples of the rate limiter: (metric, limit) -> value."""
    text = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
    samples = {}
    for metric, labels, value in re.findall(r"^(ratelimit_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        limit = re.search(r'limit="([^"]*)"', labels)
        samples[metric, limit and limit[1]] = float(value)
    return samples


def main():
    with psycopg.connect(autocommit=True) as connection:
        calls = [connection.execute("SELECT (rl_limit('sendMessage', 'monitored')).ok").fetchone()[0] for _ in range(5)]
        allowed, denied, tokens = connection.execute(
            "SELECT allowed, denied, tokens FROM rl_stats() WHERE name = 'sendMessage'"
        ).fetchone()
    assert allowed >= sum(calls) and denied >= len(calls) - sum(calls)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    host, port, user, database = (os.environ[f"PG{name}"] for name in ("HOST", "PORT", "USER", "DATABASE"))
    exporter = subprocess.Popen(
        [
            os.environ["EXPORTER"], f"--web.listen-address={address}", "--disable-default-metrics",
            "--disable-settings-metrics", f"--extend.query-path={MONITORING}/postgres_exporter.yml",
        ],
        env={"DATA_SOURCE_NAME": f"host={host} port={port} user={user} dbname={database} sslmode=disable"},
    )
    try:
        for _ in range(100):
            try:
                samples = scrape(address)
                break
            except urllib.error.URLError:
                assert exporter.poll() is None, "the exporter did not start"
                time.sleep(0.1)
    finally:
        exporter.terminate()
        exporter.wait()

    found = {name: samples["ratelimit_calls_" + name, "sendMessage"] for name in ("allowed", "denied", "tokens")}
    assert found == {"allowed": allowed, "denied": denied, "tokens": tokens}, (found, allowed, denied, tokens)
    assert samples["ratelimit_calls_denied_in_dry_run", "sendMessage"] == 0
    assert samples["ratelimit_memory_room", None] >= samples["ratelimit_memory_keys", None] >= 0

    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queried = set(re.findall(r"ratelimit_\w+", json.dumps(dashboard)))
    metrics = {metric for metric, _ in samples}
    assert len(expressions) >= 8 and queried == metrics, queried ^ metrics


main()
