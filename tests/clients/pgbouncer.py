"""ratelimit behind PgBouncer, where 16 clients share four server connections, a transaction at a time.

Connects with libpq's variables, which lead to PgBouncer as tests/clients/run starts it: as a role that has EXECUTE on
rl_limit and rl_check; and as the superuser postgres, which defines limits and is PgBouncer's administrator.
"""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import asyncpg
import psycopg

CLIENTS, SERVERS = 16, 4
PID = "SELECT pg_backend_pid()"


def connect(**options):
    return psycopg.connect(autocommit=True, **options)


def value(connection, sql, *values):
    return connection.execute(sql, values).fetchone()[0]


def on_every_server(clients, sql, *values):
    """The values of a query on all server connections: each is held by a transaction until all have answered."""
    holders = clients[:SERVERS]
    for client in holders:
        client.execute("BEGIN")
    assert len({value(client, PID) for client in holders}) == SERVERS
    values = [value(client, sql, *values) for client in holders]
    for client in holders:
        client.execute("COMMIT")
    return values


def take_all(clients, name, rollback_gives_back=True):
    """All clients call until they are denied, by turns alone, in a transaction, and in one that rolls back. Returns
    how many tokens they took, with those of a last client that finds no row locked."""
    started, pids = Barrier(CLIENTS, timeout=60), set()
    take = "SELECT ok, retry_after, pg_backend_pid() FROM rl_limit(%s, 'clients')"

    def take_until_denied(client):
        started.wait()
        taken = 0
        for turn in range(1_000):
            if turn % 3 > 0:
                client.execute("BEGIN")
            ok, retry_after, pid = client.execute(take, [name]).fetchone()
            pids.add(pid)
            if turn % 3 > 0:
                client.execute("COMMIT" if turn % 3 == 1 else "ROLLBACK")
            taken += ok and not (rollback_gives_back and turn % 3 == 2)
            if not ok and retry_after > 0:  # 0: of a limit with shards, what is left is locked
                return taken
        raise AssertionError("it was never denied")

    with ThreadPoolExecutor(CLIENTS) as threads:
        taken = sum(threads.map(take_until_denied, clients))
    assert len(pids) <= SERVERS, pids
    while value(clients[0], take, name):
        taken += 1
    return taken


async def with_asyncpg(calls):
    """Returns how many of the calls pass, on connections that each prepare the statement."""
    async with asyncpg.create_pool(min_size=CLIENTS, max_size=CLIENTS) as pool:
        take = "SELECT ok FROM rl_limit('pooled', $1)"
        return sum(await asyncio.gather(*(pool.fetchval(take, "asyncpg") for _ in range(calls))))


def raises(sqlstate, client, sql, *values):
    try:
        client.execute(sql, values)
    except psycopg.Error as error:
        assert error.sqlstate == sqlstate, error
        return error
    raise AssertionError(f"{sqlstate} expected")


# Half of the clients prepare each statement by name, which PgBouncer then prepares on each server connection
# (max_prepared_statements); the others send unnamed ones.
clients = [connect(prepare_threshold=0 if n % 2 else None) for n in range(CLIENTS)]
owner = connect(user="postgres", prepare_threshold=None)

define = "SELECT rl_define('pooled', rl_fixed_window(%s, '1 day', first_request => true))"
assert value(owner, define, 100)
owner.execute("""SELECT
    rl_define('pooledShards', rl_fixed_window(100, '36500 days', start => '2000-01-01 00:00:00Z', shards => 4)),
    rl_define('pooledMemory', rl_fixed_window(100, '1 day', first_request => true, store => 'memory'))""")

# 1. Exactly 100 pass: of one row, of four, and in memory, where a rollback gives nothing back.
assert take_all(clients, "pooled") == 100
assert take_all(clients, "pooledShards") == 100
assert take_all(clients, "pooledMemory", rollback_gives_back=False) == 100
assert asyncio.run(with_asyncpg(calls=200)) == 100
prepared = "SELECT count(*) FROM pg_prepared_statements WHERE statement = %s"
assert all(on_every_server(clients[1::2], prepared, prepared.replace("%s", "$1"))), "nothing was prepared"

# 2. A denial as an error reaches its client, alone and in a transaction; the client goes on, and so do the others.
client, throwing = clients[1], "SELECT rl_limit(%s, 'clients', throws => true)"
error = raises("PT429", client, throwing, "pooled")
assert json.loads(error.diag.message_detail)["name"] == "pooled"
client.execute("BEGIN")
client.execute("SET LOCAL ratelimit.error_style = 'pgrst'")
raises("PGRST", client, throwing, "pooled")
client.execute("ROLLBACK")
raises("PT429", client, throwing, "pooled")
assert value(client, "SELECT ok FROM rl_limit('pooled', 'another')")
assert on_every_server(clients, "SELECT (rl_check('pooled', 'clients')).ok") == [False] * SERVERS

# 3. Every server connection has read the definition; when another client replaces it, the next call of each knows.
capacity = "SELECT capacity FROM rl_check('pooled', 'defined')"
assert on_every_server(clients, capacity) == [100] * SERVERS
assert value(owner, define, 7)
assert on_every_server(clients, capacity) == [7] * SERVERS

# 4. SET LOCAL: a call that waits for the row of another transaction fails, and later transactions wait as before.
holder, client = clients[:2]
holder.execute("BEGIN")
assert value(holder, "SELECT ok FROM rl_limit('pooled', 'held')")
client.execute("BEGIN")
client.execute("SET LOCAL lock_timeout = '10ms'")
client.execute("SAVEPOINT before")
raises("55P03", client, "SELECT rl_limit('pooled', 'held')")
client.execute("ROLLBACK TO before")
client.execute("COMMIT")
holder.execute("COMMIT")
assert on_every_server(clients, "SHOW lock_timeout") == ["0"] * SERVERS
assert value(client, "SELECT remaining FROM rl_limit('pooled', 'held')") == 5

# 5. DISCARD ALL after every transaction, which also forgets prepared statements: a definition, its change, rows and
# memory are as before.
for client in clients:
    client.close()
admin = connect(user="postgres", dbname="pgbouncer", cursor_factory=psycopg.ClientCursor)
admin.execute("SET server_reset_query_always = 1")
admin.execute("RECONNECT clients")
clients = [connect(prepare_threshold=None) for _ in range(CLIENTS)]
on_every_server(clients, "SELECT set_config('work_mem', '123kB', false)")
assert "123kB" not in on_every_server(clients, "SHOW work_mem"), "nothing was discarded"
assert on_every_server(clients, capacity) == [7] * SERVERS
assert value(owner, "SELECT rl_reset('pooled', 'clients')") and value(owner, define, 50)
assert on_every_server(clients, capacity) == [50] * SERVERS
assert take_all(clients, "pooled") == 50
assert take_all(clients, "pooledMemory", rollback_gives_back=False) == 0
