"""A pool for each node of a cluster of Citus, from Python, with psycopg 3: a take is made on the node that has its key.

Connects with libpq's variables (PGHOST, PGUSER, PGDATABASE, …) to any node. Every claim is asserted.
"""

import functools

from psycopg_pool import ConnectionPool

any_node = ConnectionPool("", min_size=1, open=True)
pools = {}


def pool(host, port):
    if (host, port) not in pools:
        pools[host, port] = ConnectionPool(f"host={host} port={port}", min_size=1, open=True)
    return pools[host, port]


@functools.lru_cache(maxsize=100_000)
def node_of(name, key):
    with any_node.connection() as conn:
        return conn.execute("SELECT host, port FROM rl_node(%s, %s)", [name, key]).fetchone()


def take(name, key):
    with pool(*node_of(name, key)).connection() as conn:
        return conn.execute("SELECT ok FROM rl_limit(%s, %s)", [name, key]).fetchone()[0]


with any_node.connection() as conn:
    conn.execute("SELECT rl_define('pools', rl_token_bucket(2, '1000 days'))")
keys = [f"user-{n}" for n in range(30)]
for key in keys:
    assert [take("pools", key) for _ in range(3)] == [True, True, False], key
    # Where the row is: the node has its shard, and the statement sent no message.
    with pool(*node_of("pools", key)).connection() as conn:
        plan = conn.execute(f"EXPLAIN SELECT FROM rateLimits WHERE name = 'pools' AND key = '{key}'").fetchall()
        host = conn.execute("SELECT current_setting('citus.local_hostname')").fetchone()[0]
        assert any(f"host={host} " in line for (line,) in plan), (key, host, plan)
assert len(pools) > 1, pools
with any_node.connection() as conn:
    conn.execute("SELECT rl_reset_keys('pools'), rl_undefine('pools')")
for each in [any_node, *pools.values()]:
    each.close()
