"""Measures the cost of a call against that of the usual solutions without the extension.

Owns how a line of a work is measured; works.py is what is compared, report.py how the results look.
It reports and never judges: a bar that is not reached is shown, and is no error. Run by scripts/bench.
"""

import argparse
import csv
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import report
from report import MEMORY, REDIS, RL, SAVED, SETWISE, SQL_STORE, STAR, Bar
from works import CALL, CALL_EACH, DATABASES, FEW_KEYS, GIVE_UP, KEYS, LIMITS, SAME_KEY, SETTINGS
from works import TABLES, VACUUM, works

HERE = Path(__file__).parent


def check(right, otherwise):
    if not right:
        raise SystemExit(f"error: {otherwise}")


def output(*command):
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


def cpu_seconds(process):
    """What a process and its children that have ended took so far."""
    stat = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")


class Redis:
    """A Redis without persistence, behind a unix socket in a folder of its own."""

    def __init__(self, folder):
        self.socket = f"{folder}/socket"
        # The server's program goes by this name too, in a Debian package without its service.
        program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
        command = ["redis-server", "--port", "0", "--unixsocket", self.socket, "--dir", folder]
        command += ["--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(command, executable=program, stdout=subprocess.DEVNULL)
        while not os.path.exists(self.socket):
            check(self.process.poll() is None, "Redis did not start")
            time.sleep(0.1)
        self.version = re.search(r"redis_version:(\S+)", self.cli("INFO", "server"))[1]
        self.script = self.cli("SCRIPT", "LOAD", (HERE / "token_bucket.lua").read_text()).strip()

    def cli(self, *command):
        return output("redis-cli", "-s", self.socket, *command)

    def benchmark(self, clients, key, limit, seconds):
        """Calls a second, and how many there were; __rand_int__ in the key is a random number."""
        call = ["EVALSHA", self.script, "1", key, *map(str, LIMITS[limit]), "1"]
        requests = seconds * (20_000 if clients == 1 else 60_000)  # it takes no time, only a number
        how = ["-c", str(clients), "-n", str(requests), "-r", str(KEYS), "--csv"]
        printed = output("redis-benchmark", "-s", self.socket, *how, *call)
        check(self.cli(*call).split()[0] == ("1" if limit == "allowed" else "0"), f"Redis is not {limit}")
        return float(list(csv.reader(printed.splitlines()))[-1][1]), requests

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Bench:
    """The server of scripts/bench, and how its statements are measured."""

    def __init__(self, options, redis):
        self.options, self.redis = options, redis
        self.cores = len(os.sched_getaffinity(0))
        self.settings = {"synchronous_commit": "off"}
        self.psql("postgres", "CREATE DATABASE bench")
        self.psql("bench", (HERE / "setup.sql").read_text())
        self.databases = set()
        self.postmaster = self.psql("bench", "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)").strip()
        self.cpu = None  # the microseconds of CPU a call of the last line, where they were measured
        self.rl = [RL, STAR]  # the lines of rl_limit
        settings = self.psql("bench", "LOAD 'ratelimit'; SELECT name FROM pg_settings")
        if "ratelimit.access" in settings.splitlines():
            self.settings["ratelimit.access"] = options.access
            self.rl += [SQL_STORE] * (options.access != "sql")

    def run(self, program, database, *arguments, stdin, settings):
        settings = [f"-c {name}={value}" for name, value in (self.settings | settings).items()]
        server = ["-h", self.options.socket, "-U", "postgres", database]
        return subprocess.run(
            [f"{self.options.bin}/{program}", *arguments, *server],
            input=stdin, text=True, capture_output=True, env=os.environ | {"PGOPTIONS": " ".join(settings)},
        )

    def psql(self, database, sql, **settings):
        """The output of the SQL; None after a statement_timeout."""
        done = self.run("psql", database, "-XAt", "-v", "ON_ERROR_STOP=1", stdin=sql, settings=settings)
        if "due to statement timeout" in done.stderr:
            return None
        check(done.returncode == 0, f"{done.stderr}{sql}")
        return done.stdout

    def database(self, name):
        """Its name, once it is there."""
        if name not in self.databases:
            self.psql("postgres", f"CREATE DATABASE {name} TEMPLATE bench")
            self.psql(name, f"{DATABASES[name]}; VACUUM (ANALYZE) {TABLES};")
            self.databases.add(name)
        return name

    def timed(self, database, statement, affected, warm_up="", stop=0, **settings):
        """Seconds that a statement takes, at most stop. It prints the number of its rows or calls;
        another number than expected is a failure."""
        timeout = f"SET statement_timeout = {stop * 1000:.0f}"
        printed = self.psql(database, f"{warm_up};\n{timeout};\n\\timing on\n{statement};", **settings)
        if printed is None:
            return stop
        count, milliseconds = re.search(r"(\d+)\nTime: ([\d.]+) ms.*\s*\Z", printed).groups()
        check(int(count) == affected, f"{count} instead of {affected}: {statement}")
        return float(milliseconds) / 1000

    def pgbench(self, database, sql, clients, *, keys=KEYS, length=(), **settings):
        """Prepared calls a second, each a transaction; :key is a random one of the keys."""
        before = cpu_seconds(self.postmaster)
        done = self.run(
            "pgbench", database, "-n", "-M", "prepared", "-f", "-",
            "-c", str(clients), "-j", str(min(clients, self.cores)),
            *(length or ["-T", str(self.options.seconds)]),
            stdin=f"\\set key random(1, {keys})\n\\set other random(1, {keys})\n{sql};\n",
            settings=settings,
        )
        check(done.returncode == 0, f"{done.stderr}{sql}")
        while self.psql("bench", "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'").strip() != "0":
            time.sleep(0.01)  # the CPU time of a session is known when it has ended
        calls = int(re.search(r"actually processed: (\d+)", done.stdout)[1])
        self.cpu = (cpu_seconds(self.postmaster) - before) / calls * 1e6
        return float(re.search(r"tps = ([\d.]+) \(without", done.stdout)[1])

    def of_redis(self, clients, key, limit):
        before = cpu_seconds(self.redis.process.pid)
        rate, calls = self.redis.benchmark(clients, key, limit, self.options.seconds)
        self.cpu = (cpu_seconds(self.redis.process.pid) - before) / calls * 1e6
        return rate

    def calls(self, sql, clients, database="single", **more):
        """A line of some other single calls."""

        def measure():
            self.psql(self.database(database), VACUUM)
            return self.pgbench(database, sql, clients, **more)

        return measure

    def single(self, labels, limit, clients, *, hot=False, **settings):
        """Lines of single calls, all on one hot key or each on one of many."""
        capacity, rate = LIMITS[limit]

        def line(label):
            if label == REDIS:
                key = f"{limit}:{'hot' if hot else '__rand_int__'}"
                return lambda: self.of_redis(clients, key, limit)
            in_memory = label in (MEMORY, SAVED)
            on = lambda key: CALL[label].format(limit=limit, key=key, capacity=capacity, rate=rate)

            def measure():
                self.psql(self.database("single"), VACUUM)
                if ").ok" in CALL[label]:
                    if in_memory:
                        self.psql("single", on("'1'"))  # memory is full, and has no rows to fill
                    answer = self.psql("single", on("'1'")).strip()
                    check(answer == ("t" if limit == "allowed" else "f"), f"{on(1)}: {answer}")
                key = "'1'" if hot else ":key"
                return self.pgbench("single", on(key), clients, **SETTINGS.get(label, {}), **settings)

            return measure

        return {label: line(label) for label in labels}

    def setwise(self, labels, limit, database, before=VACUUM, bare=None):
        """Lines of one statement over all keys."""
        capacity, rate = LIMITS[limit]

        def line(label):
            sql = bare if label == SETWISE else CALL_EACH[label]
            on = lambda keys: sql.format(limit=limit, keys=keys, capacity=capacity, rate=rate)
            # Ten keys load and plan what a session does once.
            warm_up = on(FEW_KEYS) if "{keys}" in sql else ""
            settings = SETTINGS.get(label, {})

            def measure():
                self.psql(self.database(database), before)
                passing = KEYS if limit == "allowed" else 0
                return KEYS / self.timed(database, on("keys"), passing, warm_up, **settings)

            return measure

        return {label: line(label) for label in labels}

    def same_key(self, few, many):
        """Lines of few and of many calls for one key in one statement. The second is stopped after
        GIVE_UP times the time of the first, and then not tried again."""
        took, given_up = 0, False

        def timed(calls, stop):
            self.psql(self.database("same_key"), VACUUM)
            return self.timed("same_key", SAME_KEY.format(n=calls), calls, SAME_KEY.format(n=10), stop)

        def measure_few():
            nonlocal took
            took = timed(few, 0)
            return 1 / took

        def measure_many():
            nonlocal given_up
            if given_up:
                return None
            stop = GIVE_UP * took
            seconds = timed(many, stop)
            given_up = seconds == stop
            return 1 / seconds

        return {f"{few:,} calls": measure_few, f"{many:,} calls": measure_many}

    def updates(self):
        """A million updates of a thousand rows: the share of HOT updates, and the table's growth."""
        database, clients, updates = self.database("updates"), 16, 1_000_000
        call = CALL[RL].format(limit="allowed", key=":key")
        size = "SELECT pg_relation_size('ratelimits')"
        before = int(self.psql(database, size))
        self.pgbench(database, call, clients, keys=1000, length=["-t", str(updates // clients)])
        counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'public.ratelimits'::regclass"
        done, hot = map(int, self.psql(database, counts).split("|"))
        growth = int(self.psql(database, size)) / before
        title = f"{done:,} updates of 1,000 hot keys, {clients} clients"
        share = 100 * hot / done
        lines = [
            report.fact("heap-only (HOT) updates", f"{share:.2f} %", share, Bar("%", "at least", 99)),
            report.fact("size of the heap", f"{growth:.2f} × the first", growth, Bar("×", "at most", 4)),
        ]
        return {"name": "updates", "title": title, "unit": "", "lines": lines}

    def writer(self):
        """Measures a round of the writer, by the keys that have changed, and how old a change becomes under load."""
        database, lines = self.database("single"), []
        taken = "SELECT count((rl_limit('saved later', key)).ok) FROM (SELECT * FROM keys LIMIT {}) keys; SELECT pg_sleep(0.3)"

        def turn(keys):
            """The seconds of CPU, the bytes of WAL, and the seconds."""
            if keys:
                self.psql(database, taken.format(keys))
            lsn = "SELECT pg_current_wal_insert_lsn() - '0/0'"
            wal, cpu = float(self.psql(database, lsn)), cpu_seconds(self.postmaster)
            began = time.monotonic()
            left = self.psql(database, "SELECT rl_save()")
            took = time.monotonic() - began
            check(left.strip() == "0", f"{left} keys are unsaved")
            time.sleep(0.1)  # until the writer has ended
            return cpu_seconds(self.postmaster) - cpu, float(self.psql(database, lsn)) - wal, took

        nothing = min(turn(0) for _ in range(self.options.repeats))
        for keys in (1000, 10_000, 100_000):
            turn(keys)  # the rows are new
            cpu, wal, took = (statistics.median(each) for each in zip(*(turn(keys) for _ in range(self.options.repeats))))
            shown = f"{(cpu - nothing[0]) * 1000:,.0f} ms of CPU, {wal / 1000:,.0f} kB of WAL, {took * 1000:,.0f} ms"
            lines.append(report.fact(f"{keys:,} keys changed", shown, took, Bar("s", "at most", 1)))
        oldest = self.oldest_unsaved(database)
        lines.append(report.fact("10,000 keys, 16 clients: the oldest change", f"{oldest:.2f} s old", oldest, Bar("s", "at most", 2)))
        return {"name": "writer", "title": "a turn of the writer, saved each second", "unit": "", "lines": lines}

    def oldest_unsaved(self, database):
        """The seconds that a change waits at most, while 16 clients call 10,000 keys."""
        ages, stop = [], threading.Event()

        def look():
            age = "SELECT extract(epoch FROM clock_timestamp() - unsaved_since) FROM rl_memory()"
            while not stop.wait(0.05):
                ages.append(float(self.psql(database, age).strip() or 0))

        watcher = threading.Thread(target=look)
        watcher.start()
        self.pgbench(database, CALL[SAVED].format(limit="allowed", key=":key"), 16, keys=10_000, length=["-T", "10"])
        stop.set()
        watcher.join()
        return max(ages)

    def describe(self):
        """The settings that matter: name -> value."""
        names = ["server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_level"]
        names += ["shared_buffers", "max_wal_size", "checkpoint_timeout", "autovacuum", "jit"]
        names += [name for name in self.settings if name not in names]
        show = "".join(f"SELECT '{name}|' || current_setting('{name}');\n" for name in names)
        about = {
            "cores": self.cores,
            "repeats": self.options.repeats,
            "seconds of each pgbench": self.options.seconds,
            "redis_version": self.redis.version,
        }
        return about | dict(line.split("|") for line in self.psql("bench", show).splitlines())


def measured(bench, work, repeats):
    """The work with its lines measured, as report.py takes it."""
    rates, cpus = {label: [] for label in work.lines}, {label: [] for label in work.lines}
    for repeat in range(-1 if work.warm_up else 0, repeats):
        # Forwards, then backwards: what a line leaves to be done behind it falls on no other line each time.
        for label, measure in list(work.lines.items())[:: -1 if repeat % 2 else 1]:
            bench.cpu = None
            rate = measure()
            if repeat >= 0 and rate is not None:
                rates[label].append(rate)
                cpus[label] += [bench.cpu] * (bench.cpu is not None)
    first = next(iter(work.lines))
    lines = []
    for label in work.lines:
        against = rates[first] if label != first else None
        lines.append(report.line(label, rates[label], against, work.bars.get(label), work.unit, cpus[label]))
    return {"name": work.name, "title": work.title, "unit": work.unit, "lines": lines}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, help="where psql and pgbench are")
    parser.add_argument("--socket", required=True, help="the server's")
    parser.add_argument("--results", required=True, type=Path, help="the folder for bench.md, .json and .svg")
    parser.add_argument("--only", default="", help="parts of the names of the works to run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="of each pgbench")
    parser.add_argument("--access", default="auto", choices=["auto", "sql", "heap"], help="ratelimit.access")
    options = parser.parse_args()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="ratelimit-redis.") as folder:
        redis = Redis(folder)
        try:
            run(Bench(options, redis))
        finally:
            redis.stop()


def run(bench):
    only, folder = bench.options.only.split(), bench.options.results
    chosen = lambda name: not only or any(part in name for part in only)
    results, began = [], time.monotonic()

    def add(result):
        results.append(result)
        seconds = time.monotonic() - began
        print(f"{result['title']}\n{report.work_table(result)}\n({seconds:.0f} s so far)\n", flush=True)

    for work in works(bench):
        if chosen(work.name):
            add(measured(bench, work, bench.options.repeats))
    if chosen("writer"):
        add(bench.writer())
    if chosen("updates"):
        add(bench.updates())
    check(results, f"no work has a name like {bench.options.only}")
    settings = bench.describe()
    (folder / "bench.md").write_text(report.markdown(settings, results))
    (folder / "bench.json").write_text(report.as_json(settings, results))
    (folder / "bench.svg").write_text(report.svg(results))


if __name__ == "__main__":
    main()
