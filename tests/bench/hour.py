"""Measures a long run: an hour of allowed calls on a million keys, with synchronous_commit on. Reports speed and
latency by the minute, the size of the table, the share of HOT updates, WAL, checkpoints, and what autovacuum costs.

pgbench calls; the figures are its own, those of PostgreSQL's statistics, and of the lines that autovacuum logs. The
kernel counts CPU time. Run by scripts/bench.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psycopg
import report
from bench import check, cpu_seconds, output
from psycopg.rows import dict_row

# How a key is chosen, as pgbench's expressions. Of zipfian ones about every eighth call is on one key.
SPREAD = {"zipfian": "random_zipfian(1, {keys}, 1.1)", "uniform": "random(1, {keys})"}
INSTALL = {
    "extension": lambda: "CREATE SCHEMA ratelimit; CREATE EXTENSION ratelimit SCHEMA ratelimit",
    "file": Path("dist/ratelimit.sql").read_text,
}
LIMIT = "SELECT rl_define('allowed', rl_token_bucket(rate => 1000000, period => '1 second', keyed => true))"
FILL = """
SELECT count(*) FILTER (WHERE ok) AS passed FROM generate_series(1, {keys}) AS n, LATERAL rl_limit('allowed', n::text)
"""

# Before and from PostgreSQL 17 on.
CHECKPOINTS = {
    False: "checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter",
    True: "num_timed + num_requested FROM pg_stat_checkpointer",
}
SAMPLE = """
SELECT pg_relation_size(relid) AS heap, pg_indexes_size(relid) AS index, n_dead_tup AS dead, n_tup_ins AS inserts,
    n_tup_upd AS updates, n_tup_hot_upd AS hot, autovacuum_count AS vacuums, autoanalyze_count AS analyzes,
    pg_current_wal_insert_lsn() - '0/0' AS wal, (SELECT {checkpoints}) AS checkpoints
FROM pg_stat_user_tables WHERE relid = 'ratelimits'::regclass
"""
# What autovacuum logs of the table, with log_autovacuum_min_duration = 0.
VACUUMED = re.compile(r'automatic (?:aggressive )?vacuum .*of table "hour\.\w+\.ratelimits"')
ANALYZED = re.compile(r'automatic analyze of table "hour\.\w+\.ratelimits"')
USED = {
    "index_scans": r"index scans: (\d+)",
    "read": r"buffer usage: \d+ hits, (\d+)",
    "dirtied": r"buffer usage: .* (\d+) dirtied",
    "wal": r"WAL usage: .* (\d+) bytes",
    "user": r"system usage: CPU: user: ([\d.]+) s",
    "system": r"system usage: CPU: .*system: ([\d.]+) s",
    "elapsed": r"system usage: CPU: .*elapsed: ([\d.]+) s",
}


class Server:
    """The server of scripts/bench, with the limiter and its keys in a database of its own."""

    def __init__(self, options):
        self.options = options
        self.server = {"host": options.socket, "user": "postgres", "autocommit": True, "row_factory": dict_row}
        with psycopg.connect(dbname="postgres", **self.server) as connection:
            connection.execute("CREATE DATABASE hour")
            connection.execute("ALTER DATABASE hour SET search_path = ratelimit, public")
        self.connection = psycopg.connect(dbname="hour", **self.server)
        self.connection.execute(INSTALL[options.edition]())
        self.connection.execute(LIMIT)
        passed = self.one(FILL.format(keys=options.keys))["passed"]
        check(passed == options.keys, f"{passed} calls passed while the table was filled")
        self.connection.execute("SELECT pg_stat_force_next_flush()")
        self.connection.execute("VACUUM (ANALYZE)")
        self.connection.execute("CHECKPOINT")
        self.postmaster = int(self.one("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1) AS pid")["pid"])
        later = self.connection.info.server_version >= 170000
        self.query = SAMPLE.format(checkpoints=CHECKPOINTS[later])

    def one(self, sql):
        return self.connection.execute(sql).fetchone()

    def sample(self):
        """The statistics by now, and the seconds of CPU that the server's processes took."""
        cpu = cpu_seconds(self.postmaster)
        for child in Path(f"/proc/{self.postmaster}/task/{self.postmaster}/children").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended: the next sample has it
                cpu += cpu_seconds(child)
        return self.one(self.query) | {"cpu": cpu}

    def settings(self):
        names = ["server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers"]
        names += ["max_wal_size", "checkpoint_timeout", "autovacuum_naptime", "autovacuum_max_workers", "jit"]
        names += ["ratelimit.access"]
        return {name: self.one(f"SELECT current_setting('{name}') AS value")["value"] for name in names}

    def quiet(self):
        """Waits until sessions of pgbench, and a vacuum that is running, have ended."""
        busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench' OR query LIKE 'autovacuum:%'"
        while self.one(busy)["count"]:
            time.sleep(0.1)


def machine(options):
    """What the figures depend on: name -> value."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    disk = output("df", "--output=source,fstype", str(options.results)).splitlines()[1].split()
    tested = output(f"{options.bin}/pg_test_fsync", "-s", "1", "-f", f"{options.results}/fsync")
    flushes = re.search(r"fdatasync +([\d.]+) ops/sec", tested)[1]
    return {
        "processor": model[1] if model else os.uname().machine,
        "cores": len(os.sched_getaffinity(0)),
        "memory": f"{memory:.0f} GiB",
        "disk": f"{disk[0]}, {disk[1]}, {float(flushes):,.0f} fdatasync a second",
    }


def run(server, options, folder):
    """Runs pgbench. Returns the samples, one an interval and one at each end; the calls a second of each interval; the
    calls of all; and when it began."""
    call = f"\\set key {SPREAD[options.spread].format(keys=options.keys)}\nSELECT (rl_limit('allowed', :key)).ok;\n"
    (folder / "call.sql").write_text(call)
    command = [f"{options.bin}/pgbench", "-n", "-M", "prepared", "-f", "call.sql", "-T", str(options.seconds)]
    command += ["-c", str(options.clients), "-j", str(min(options.clients, len(os.sched_getaffinity(0))))]
    command += ["-P", str(options.interval), "-l", "--log-prefix=log", f"--sampling-rate={options.sampling_rate}"]
    command += ["-h", options.socket, "-U", "postgres", "hour"]
    with (folder / "printed").open("w") as printed:
        samples, began = [server.sample()], time.time()
        pgbench = subprocess.Popen(command, cwd=folder, stdout=printed, stderr=printed)
        try:
            for tick in range(options.interval, options.seconds, options.interval):
                time.sleep(max(0, began + tick - time.time()))
                check(pgbench.poll() is None, (folder / "printed").read_text())
                samples.append(server.sample())
                print(f"{tick} s: {samples[-1]['dead']:,} dead rows", flush=True)
            pgbench.wait()
        finally:
            pgbench.kill()
    text = (folder / "printed").read_text()
    check(pgbench.returncode == 0, text)
    server.quiet()
    samples.append(server.sample())
    rates = [float(rate) for rate in re.findall(r"^progress: [\d.]+ s, ([\d.]+) tps", text, re.MULTILINE)]
    return samples, rates, int(re.search(r"actually processed: (\d+)", text)[1]), began


def latencies(folder, began, options):
    """The milliseconds of the calls that pgbench has logged, in a list for each interval."""
    found = [[] for _ in range(-(-options.seconds // options.interval))]
    for file in folder.glob("log.*"):
        for line in file.open():
            _, _, microseconds, _, epoch, _ = line.split()
            interval = int((int(epoch) - began) // options.interval)
            found[min(max(interval, 0), len(found) - 1)].append(int(microseconds) / 1000)
    return found


def percentiles(values):
    """The median, and the 95th, 99th and 99.9th percentiles."""
    if len(values) < 2:
        return [0.0] * 4
    cuts = statistics.quantiles(values, n=1000, method="inclusive")
    return [cuts[499], cuts[949], cuts[989], cuts[998]]


def vacuumed(log):
    """What autovacuum logged of the table: runs, those that cleaned the index, and the sums of what they used."""
    entries = re.split(r"\n(?!\t)", log)
    runs = [entry for entry in entries if VACUUMED.search(entry)]
    numbers = lambda name, among: [float(value[1]) for entry in among if (value := re.search(USED[name], entry))]
    used = {name: sum(numbers(name, runs)) for name in USED}
    analyzes = [entry for entry in entries if ANALYZED.search(entry)]
    used["cpu"] = used["user"] + used["system"]
    used["analyze_cpu"] = sum(numbers("user", analyzes)) + sum(numbers("system", analyzes))
    scans = sum(value > 0 for value in numbers("index_scans", runs))
    return {"runs": len(runs), "with_index": scans, "longest": max(numbers("elapsed", runs), default=0), **used}


def facts(options, samples, calls, all_latencies, used):
    """What the whole run comes to: name -> value, to be shown."""
    first, last = samples[0], samples[-1]
    gone = {name: float(last[name] - first[name]) for name in first}
    median, p95, p99, p999 = percentiles(all_latencies)
    of = lambda part, whole: f"{100 * part / whole:.2f} %" if whole else "none"
    mb = lambda size: f"{size / 1e6:,.0f} MB"
    return {
        "calls a second": f"{calls / options.seconds:,.0f}",
        "ms a call: median, 95th, 99th, 99.9th percentile": f"{median:.1f}, {p95:.1f}, {p99:.1f}, {p999:.1f}",
        "server CPU a call": f"{gone['cpu'] / calls * 1e6:.0f} µs",
        "rows written a call": f"{(gone['updates'] + gone['inserts']) / calls:.3f}",
        "HOT updates": of(gone["hot"], gone["updates"]),
        "table, before and after": f"{mb(first['heap'])}, {mb(last['heap'])}",
        "its index, before and after": f"{mb(first['index'])}, {mb(last['index'])}",
        "dead rows, at most": f"{max(sample['dead'] for sample in samples):,}",
        "WAL a call": f"{gone['wal'] / calls:,.0f} bytes",
        "checkpoints": f"{gone['checkpoints']:.0f}",
        "autovacuum: runs; those that cleaned the index": f"{used['runs']}; {used['with_index']}",
        "autovacuum: share of the time": of(used["elapsed"], options.seconds),
        "autovacuum: the longest run": f"{used['longest']:.1f} s",
        "autovacuum: share of the server's CPU": of(used["cpu"], gone["cpu"]),
        "autoanalyze: share of the server's CPU": of(used["analyze_cpu"], gone["cpu"]),
        "autovacuum: share of the WAL": of(used["wal"], gone["wal"]),
        "autovacuum: pages read; dirtied": f"{used['read']:,.0f}; {used['dirtied']:,.0f}",
    }


def by_interval(options, samples, rates, found):
    """A row for each interval."""
    header = [f"{options.interval} s", "calls a second", "median ms", "99 %", "99.9 %", "table MB", "index MB"]
    header += ["dead rows", "HOT %", "WAL MB", "vacuums"]
    rows = []
    for number, (before, after) in enumerate(zip(samples, samples[1:])):
        gone = {name: float(after[name] - before[name]) for name in before}
        median, _, p99, p999 = percentiles(found[number])
        hot = 100 * gone["hot"] / gone["updates"] if gone["updates"] else 0
        rate = f"{rates[number]:,.0f}" if number < len(rates) else ""
        row = [str(number + 1), rate, f"{median:.1f}", f"{p99:.1f}", f"{p999:.1f}"]
        row += [f"{size / 1e6:,.0f}" for size in (after["heap"], after["index"])]
        row += [f"{after['dead']:,}", f"{hot:.1f}", f"{gone['wal'] / 1e6:,.0f}", f"{gone['vacuums']:.0f}"]
        rows.append(row)
    return header, rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, help="where pgbench and pg_test_fsync are")
    parser.add_argument("--socket", required=True, help="the server's")
    parser.add_argument("--log", required=True, type=Path, help="the server's")
    parser.add_argument("--results", required=True, type=Path, help="the folder for hour.md and hour.json")
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--interval", type=int, default=60, help="seconds of a row of the table")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--spread", default="zipfian", choices=SPREAD, help="how the calls are spread over the keys")
    parser.add_argument("--edition", default="extension", choices=INSTALL, help="the extension or the SQL file")
    parser.add_argument("--sampling-rate", type=float, default=0.1, help="the share of calls whose latency is kept")
    options = parser.parse_args()

    about = machine(options)
    server = Server(options)
    logged = options.log.stat().st_size
    with tempfile.TemporaryDirectory(dir=options.results) as folder:
        samples, rates, calls, began = run(server, options, Path(folder))
        found = latencies(Path(folder), began, options)
    log = options.log.read_bytes()[logged:].decode(errors="replace")
    whole = facts(options, samples, calls, [value for each in found for value in each], vacuumed(log))
    header, rows = by_interval(options, samples, rates, found)
    names = ("edition", "seconds", "keys", "spread", "clients")
    settings = {name: getattr(options, name) for name in names} | about | server.settings()
    parts = [report.table(["", "the whole run"], list(map(list, whole.items()))), report.table(header, rows)]
    parts.append("\n".join(f"- {name}: {value}" for name, value in settings.items()))
    text = "\n\n".join(parts) + "\n"
    (options.results / "hour.md").write_text(text)
    numbers = {"settings": settings, "facts": whole, "header": header, "rows": rows}
    (options.results / "hour.json").write_text(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")
    print(text)


if __name__ == "__main__":
    main()
