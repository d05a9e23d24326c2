"""Times after the year 9999 in Python, whose own end there: psycopg and asyncpg, in time zones on both sides of UTC.

Reads the statements of far_times.txt. Connects with libpq's variables.
"""

import asyncio
import sys
from datetime import datetime, timezone

import asyncpg
import psycopg

LAST = datetime(9999, 12, 30, tzinfo=timezone.utc)
lines = (line.strip() for line in sys.stdin)
statements = [line for line in lines if line and not line.startswith("--")]
failures = []


def judge(client, statement, rows):
    """Notes where a value is not the last time."""
    values = [value for row in rows for value in row]
    if statement.startswith("SELECT") and not values or any(value != LAST for value in values):
        failures.append(f"{client}: {statement}: {', '.join(map(str, values)) or 'no rows'}")


def with_psycopg(zone, binary):
    client = f"psycopg{' binary' if binary else ''}, {zone}"
    with psycopg.connect(autocommit=True) as conn:
        conn.execute("SELECT set_config('TimeZone', %s, false)", [zone])
        for statement in statements:
            try:
                with conn.transaction():
                    cursor = conn.execute(statement.replace("@", client), binary=binary)
                    judge(client, statement, cursor.fetchall() if cursor.description else [])
            except Exception as error:  # it rolls the call back
                failures.append(f"{client}: {statement}: {error}")
        ok = conn.execute("SELECT ok FROM rl_check('slow', %s)", [f"{client} blocked"]).fetchone()[0]
        ended = conn.execute("SELECT rl_unblock('slow', %s)", [f"{client} blocked"]).fetchone()[0]
        if ok or not ended:
            failures.append(f"{client}: the key is not blocked")


async def with_asyncpg(zone):
    client = f"asyncpg, {zone}"
    conn = await asyncpg.connect(server_settings={"TimeZone": zone})
    for statement in statements:
        try:
            async with conn.transaction():
                judge(client, statement, await conn.fetch(statement.replace("@", client)))
        except Exception as error:
            failures.append(f"{client}: {statement}: {error}")
    ok = await conn.fetchval("SELECT ok FROM rl_check('slow', $1)", f"{client} blocked")
    if ok or not await conn.fetchval("SELECT rl_unblock('slow', $1)", f"{client} blocked"):
        failures.append(f"{client}: the key is not blocked")
    await conn.close()


for zone in ["Pacific/Kiritimati", "Etc/GMT+12"]:  # 14 hours before UTC, and 12 after it
    with_psycopg(zone, binary=False)
    with_psycopg(zone, binary=True)
    asyncio.run(with_asyncpg(zone))
assert statements and not failures, "\n".join(failures)
