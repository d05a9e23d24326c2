"""The comparisons of the benchmark: statements, works, and the bars that they are to reach.

Measures nothing itself: bench.py says how a line is measured.
"""

from dataclasses import dataclass, field

from report import BARE, EIGHT, FILE, MEMORY, NOOP, PLPGSQL, REDIS, RL, SELECT_1, SELECT_ROW, SETWISE, SQL_STORE
from report import SAVED, STAR, UPSERT
from report import Bar

KEYS = 100_000
GIVE_UP = 13  # times the time of the same work in small

# The limits of setup.sql as the competitors take them: capacity, tokens a second.
LIMITS = {"allowed": (1_000_000, 1_000_000), "denied": (1, 1 / 86400)}

# One call. {key} is a literal, or pgbench's variable.
CALL = {
    RL: "SELECT (rl_limit('{limit}', {key})).ok",
    STAR: "SELECT * FROM rl_limit('{limit}', {key})",
    BARE: "UPDATE bare SET value = value - 1, ts = clock_timestamp()"
    " WHERE name = '{limit}' AND key = {key} AND shard = 0",
    PLPGSQL: "SELECT (plpgsql_limit('{limit}', {key}, {capacity}, {rate})).ok",
    FILE: "SELECT (ratelimit.rl_limit('{limit}', {key})).ok",
    EIGHT: "SELECT eight_lines('{limit}', {key}, {capacity}, {rate})",
    UPSERT: "INSERT INTO upsert (name, key, value, ts) VALUES ('{limit}', {key}, 1, now() + '1 minute')"
    " ON CONFLICT (name, key, shard) DO UPDATE SET"
    " value = CASE WHEN upsert.ts <= now() THEN 1 ELSE upsert.value + 1 END,"
    " ts = CASE WHEN upsert.ts <= now() THEN EXCLUDED.ts ELSE upsert.ts END RETURNING value, ts",
    # The cost of reading a row: the bound for a denied call.
    SELECT_ROW: "SELECT value FROM ratelimits WHERE name = '{limit}' AND key = {key} AND shard = 0",
    SELECT_1: "SELECT 1",
    MEMORY: "SELECT (rl_limit('memory {limit}', {key})).ok",
    SAVED: "SELECT (rl_limit('saved {limit}', {key})).ok",
    # The cost of calling any function: the bound for a call in memory.
    NOOP: "SELECT noop('memory {limit}', {key})",
}

# A call for each row of {keys}, in one statement.
CALL_EACH = {
    RL: "SELECT count(*) FILTER (WHERE (rl_limit('{limit}', key)).ok) FROM {keys}",
    MEMORY: "SELECT count(*) FILTER (WHERE (rl_limit('memory {limit}', key)).ok) FROM {keys}",
    NOOP: "SELECT count(noop('memory {limit}', key)) FROM {keys}",
    STAR: "SELECT count(*) FILTER (WHERE ok) FROM {keys}, LATERAL rl_limit('{limit}', key)",
    PLPGSQL: "SELECT count(*) FILTER (WHERE (plpgsql_limit('{limit}', key, {capacity}, {rate})).ok)"
    " FROM {keys}",
}
UPDATE_ALL = "UPDATE bare SET value = value - 1, ts = clock_timestamp() WHERE name = 'allowed'"
INSERT_ALL = (
    "INSERT INTO bare (name, key, value, ts) SELECT 'allowed', key, 999999, clock_timestamp() FROM {keys}"
    " ON CONFLICT (name, key, shard) DO UPDATE SET value = bare.value - 1, ts = clock_timestamp()"
)
FEW_KEYS = "(SELECT * FROM keys LIMIT 10) keys"
SAME_KEY = "SELECT count(*) FILTER (WHERE (rl_limit('allowed', '1')).ok) FROM generate_series(1, {n})"

# The second store is a line of its own, with the same statements.
CALL[SQL_STORE], CALL_EACH[SQL_STORE] = CALL[RL], CALL_EACH[RL]
SETTINGS = {SQL_STORE: {"ratelimit.access": "sql"}}

# Databases, each a copy of the one of setup.sql with other rows.
DATABASES = {
    "single": f"CALL fill('allowed', {KEYS}, 1000000); CALL fill('denied', 1, 0)",
    "setwise_allowed": f"CALL fill('allowed', {KEYS}, 1000000)",
    "setwise_denied": f"CALL fill('denied', {KEYS}, 0)",
    "setwise_new": "",
    "same_key": "CALL fill('allowed', 1000, 1000000)",
    "few_rows": "CALL fill('allowed', 1000, 1000000)",
    "many_rows": "CALL fill('allowed', 5000000, 1000000, '{ratelimits}')",
    "updates": "CALL fill('allowed', 1000, 1000000)",
}
TABLES = "public.ratelimits, bare, plpgsql, upsert, ratelimit.ratelimits"
VACUUM, EMPTY = f"VACUUM {TABLES}", f"TRUNCATE {TABLES}"


@dataclass
class Work:
    """A comparison. Its lines are measured in turn, REPEATS times over; all are compared with the
    first, repeat by repeat."""

    name: str
    title: str
    lines: dict  # label -> a function that measures it: calls a second, or None: not tried again
    bars: dict = field(default_factory=dict)  # label -> Bar
    warm_up: bool = False  # a first round that is not counted
    unit: str = "calls/s"  # or "time"


def works(bench):
    """The works and their bars."""
    rl = bench.rl
    others = [PLPGSQL, UPSERT, REDIS]
    at_least = lambda bound: Bar("rate", "at least", bound)
    at_most = lambda bound: Bar("time", "at most", bound)
    second_form = {STAR: Bar("rate", "at most", 1.2)}
    durable = {"synchronous_commit": "on"}
    any_key = CALL[RL].format(limit="allowed", key=":key")
    two_limits = """SELECT ok FROM rl_limit_all(('[{"name": "allowed", "key": "' || :key || '"},
        {"name": "allowed", "key": "' || :other || '"}]')::jsonb)"""
    against_lines = {EIGHT: at_least(0.5), PLPGSQL: at_least(0.5)}
    held = "BEGIN;\n{}SELECT pg_sleep(0.005);\nCOMMIT".format
    insert = "INSERT INTO {}_messages VALUES (:key, 'hello')"
    return [
        Work(
            "setwise_allowed", "100,000 keys in one statement, allowed",
            bench.setwise([*rl, SETWISE, PLPGSQL], "allowed", "setwise_allowed", bare=UPDATE_ALL),
            {SETWISE: at_most(3.0), PLPGSQL: at_least(3.3)} | second_form, warm_up=True,
        ),
        Work(
            "setwise_denied", "100,000 keys in one statement, denied",
            bench.setwise([*rl, PLPGSQL], "denied", "setwise_denied"),
            {PLPGSQL: at_least(4.0)} | second_form, warm_up=True,
        ),
        Work(
            "setwise_new", "100,000 new keys in one statement",
            bench.setwise([*rl, SETWISE, PLPGSQL], "allowed", "setwise_new", EMPTY, bare=INSERT_ALL),
            {SETWISE: at_most(2.5)} | second_form,
        ),
        *(
            Work(
                f"single_{clients}", f"single calls, 100,000 keys, {clients} client{'s' * (clients > 1)}",
                bench.single([*rl, BARE, *others], "allowed", clients), {BARE: at_least(1.0)} | second_form,
            )
            for clients in (1, 16)
        ),
        Work(
            "hot_allowed", "one hot key, allowed, 16 clients",
            bench.single([*rl, BARE, *others], "allowed", 16, hot=True),
            {BARE: at_least(1.0), PLPGSQL: at_least(1.8)} | second_form,
        ),
        Work(
            "hot_denied", "one hot key, denied, 16 clients",
            bench.single([*rl, SELECT_ROW, SELECT_1, *others], "denied", 16, hot=True),
            {SELECT_ROW: at_least(1.0), SELECT_1: at_least(0.8), REDIS: at_least(1.0), PLPGSQL: at_least(3.5)} | second_form,
        ),
        Work(
            "hot_allowed_durable", "one hot key, allowed, 16 clients, synchronous_commit on",
            bench.single([RL, SQL_STORE, BARE, PLPGSQL, UPSERT], "allowed", 16, hot=True, **durable),
        ),
        Work(
            "hot_denied_durable", "one hot key, denied, 16 clients, synchronous_commit on",
            bench.single([RL, PLPGSQL], "denied", 16, hot=True, **durable),
        ),
        Work(
            "memory_hot", "one hot key, allowed, 16 clients, in memory",
            bench.single([MEMORY, NOOP, SELECT_1, REDIS, RL, SAVED], "allowed", 16, hot=True),
            {SELECT_1: at_least(0.8), REDIS: at_least(1.2), RL: at_least(3.0)},
        ),
        Work(
            "memory_denied", "one hot key, denied, 16 clients, in memory",
            bench.single([MEMORY, NOOP, SELECT_1, REDIS, RL, SAVED], "denied", 16, hot=True),
            {SELECT_1: at_least(0.85), REDIS: at_least(1.2)},
        ),
        Work(
            "memory_keys", "100,000 keys, allowed, 16 clients, in memory",
            bench.single([MEMORY, NOOP, SELECT_1, REDIS, RL, SAVED], "allowed", 16),
            {SELECT_1: at_least(0.8), REDIS: at_least(1.5)},
        ),
        *(
            Work(
                f"saved_{keys}_{clients}", f"{title}, {clients} client{'s' * (clients > 1)}, in memory, saved each second",
                bench.single([SAVED, MEMORY, RL], "allowed", clients, hot=keys == "hot"),
                {MEMORY: at_least(0.95 if clients == 1 else 0.9)}, warm_up=True,
            )
            for keys, title in (("hot", "one hot key, allowed"), ("keys", "100,000 keys, allowed"))
            for clients in (1, 16)
        ),
        Work(
            "saved_held", "one key taken in transactions of 5 ms, 16 clients, in memory, saved each second",
            {
                SAVED: bench.calls(held("SELECT (rl_limit('saved allowed', '1')).ok;\n"), 16),
                "no limit": bench.calls(held(""), 16),
                RL: bench.calls(held("SELECT (rl_limit('allowed', '1')).ok;\n"), 16),
            },
            {"no limit": at_least(0.95)},
        ),
        Work(
            "memory_setwise", "100,000 keys in one statement, in memory",
            bench.setwise([MEMORY, NOOP, RL], "allowed", "setwise_allowed"),
            {NOOP: Bar("µs", "at most", 1.0)}, warm_up=True,
        ),
        Work(
            "memory_held", "one key taken in transactions of 5 ms, 16 clients",
            {
                MEMORY: bench.calls(held("SELECT (rl_limit('memory allowed', '1')).ok;\n"), 16),
                "no limit": bench.calls(held(""), 16),
                "16 shards": bench.calls(held("SELECT (rl_limit('sharded', '1')).ok;\n"), 16),
                RL: bench.calls(held("SELECT (rl_limit('allowed', '1')).ok;\n"), 16),
            },
            {"no limit": at_least(0.9)},
        ),
        Work(
            "memory_durable", "one hot key, allowed, 16 clients, synchronous_commit on, in memory",
            bench.single([MEMORY, RL], "allowed", 16, hot=True, **durable), {RL: at_least(10.0)},
        ),
        Work(
            "shards", "one hot key, allowed, 16 clients, synchronous_commit on, by shards",
            {
                "16 shards": bench.calls("SELECT (rl_limit('sharded', '1')).ok", 16, **durable),
                "no shards": bench.calls("SELECT (rl_limit('allowed', '1')).ok", 16, **durable),
            },
            {"no shards": at_least(4.0)},
        ),
        Work(
            "same_key", f"one key n times in one transaction, given up after {GIVE_UP} times as long",
            bench.same_key(10_000, 100_000), {"100,000 calls": Bar("rate", "at most", 12)}, unit="time",
        ),
        Work(
            "rows", "single calls, 1 client, by rows in the table",
            {
                "5,000,000 rows": bench.calls(any_key, 1, "many_rows", keys=5_000_000),
                "1,000 rows": bench.calls(any_key, 1, "few_rows", keys=1000),
            },
            {"1,000 rows": at_most(1.5)}, warm_up=True,
        ),
        *(
            Work(
                f"file_single_{clients}", f"the SQL file: single calls, 100,000 keys, {clients} client{'s' * (clients > 1)}",
                bench.single([FILE, RL, EIGHT, PLPGSQL, BARE], "allowed", clients), against_lines,
            )
            for clients in (1, 16)
        ),
        Work(
            "file_hot_allowed", "the SQL file: one hot key, allowed, 16 clients",
            bench.single([FILE, RL, EIGHT, PLPGSQL, BARE], "allowed", 16, hot=True), against_lines,
        ),
        Work(
            "file_hot_denied", "the SQL file: one hot key, denied, 16 clients",
            bench.single([FILE, RL, EIGHT, PLPGSQL, SELECT_ROW], "denied", 16, hot=True),
            {EIGHT: at_least(1.5), PLPGSQL: at_least(1.5)},
        ),
        Work(
            "file_two", "the SQL file: rl_limit_all of two limits, 1 client",
            {
                "of the SQL file": bench.calls(two_limits.replace("rl_limit_all", "ratelimit.rl_limit_all"), 1),
                "of the extension": bench.calls(two_limits, 1),
                SELECT_1: bench.calls(CALL[SELECT_1], 1),
            },
            {SELECT_1: Bar("µs", "at most", 600)},
        ),
        Work(
            "others", "other calls, 100,000 keys, 16 clients",
            {
                RL: bench.calls(any_key, 16),
                "SELECT (rl_check(…)).ok": bench.calls("SELECT (rl_check('allowed', :key)).ok", 16),
                "rl_limit_all, two limits": bench.calls(two_limits, 16),
                "INSERT with rl_trigger": bench.calls(insert.format("limited"), 16),
                "INSERT without": bench.calls(insert.format("plain"), 16),
            },
        ),
    ]
