"""A process whose calls share statements, on the limits of the argument, as JSON. It writes two lines for each call:
before it its number, name, key and count; after it its number and outcome: ok, denied, unknown, bad, or the SQLSTATE
of another error."""

import asyncio
import json
import os
import random
import sys
import threading

import asyncpg
from psycopg_pool import AsyncConnectionPool

from postgres_rate_limit import AsyncRateLimiter
from postgres_rate_limit._results import innermost, sqlstate

given = json.loads(sys.argv[1])
log = os.open(given["file"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
stopped, number = threading.Event(), 0


def stops():
    sys.stdin.read()
    stopped.set()


async def call(limiter):
    global number
    number += 1
    mine, count = number, random.randint(1, 3)
    name, key = random.choice([*given["limits"]]), random.choice(given["keys"])
    if random.random() < 0.02:
        name, key, count = "bad", random.choice("ab"), 1
    os.write(log, f"{mine} {name} {key} {count}\n".encode())
    config = {"kind": "nonsense"} if name == "bad" else None
    made = asyncio.ensure_future(limiter.limit(name, key, count=count, config=config))
    if random.random() < 0.05:  # the caller gives up
        await asyncio.sleep(random.uniform(0, 0.005))
        made.cancel()
    (answer,) = await asyncio.gather(made, return_exceptions=True)
    if isinstance(answer, BaseException):
        state = sqlstate(innermost(answer)) if isinstance(answer, Exception) else None
        lost = isinstance(answer, (asyncio.CancelledError, OSError)) or "connection" in str(answer)
        if name == "bad" and state == "22023":
            outcome = "bad"
        elif state in ("57P01", "08003") or state is None and lost:
            outcome = "unknown"  # it may count
        else:
            outcome = state or repr(answer).replace(" ", "_")
    else:
        outcome = "ok" if answer.ok else "denied"
    os.write(log, f"{mine} {outcome}\n".encode())


async def run(pool):
    limiter = AsyncRateLimiter(given["limits"], db=pool)

    async def calls():
        while not stopped.is_set():
            await call(limiter)

    print("begun", flush=True)
    await asyncio.gather(*(calls() for _ in range(16)))


async def main():
    if given["driver"] == "asyncpg":
        async with asyncpg.create_pool(min_size=1, max_size=4) as pool:
            await run(pool)
    else:
        async with AsyncConnectionPool(min_size=1, max_size=4, open=False) as pool:
            await run(pool)


threading.Thread(target=stops, daemon=True).start()
asyncio.run(main())
