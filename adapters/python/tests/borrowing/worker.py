"""A process that spends borrowed tokens as fast as it gets them: the argument says of which limit, as JSON. Its clock is
wrong, and steps. It writes a line for each spend: the real time before and after it, and the count."""

import asyncio
import json
import os
import random
import sys
import threading
import time

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from postgres_rate_limit import AsyncRateLimiter, RateLimiter

given = json.loads(sys.argv[1])
log = os.open(given["file"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
real_time, ahead = time.time, given["ahead"]
time.time = lambda: real_time() + ahead
stopped = False


def wrote(before, count):
    os.write(log, f"{before} {real_time()} {count}\n".encode())
    return True


def stops():
    global stopped
    for _ in sys.stdin:
        stopped = True


def step(n):
    global ahead
    if n % 500 == 0:
        ahead = given["ahead"] + random.uniform(-1, 1)


def threads():
    with ConnectionPool(min_size=1, max_size=2) as pool:
        limiter = RateLimiter({given["name"]: given["config"]}, db=pool)
        with limiter.borrow(given["name"], **given["options"]) as local:

            def spends():
                n = 0
                while not stopped:
                    count, before = random.randint(1, 3), real_time()
                    if local.take(count=count) or local.limit(count=count):
                        wrote(before, count)
                    else:
                        time.sleep(0.001)
                    step(n := n + 1)

            both = [threading.Thread(target=spends) for _ in range(2)]
            for each in both:
                each.start()
            for each in both:
                each.join()


async def tasks():
    async with AsyncConnectionPool(min_size=1, max_size=2, open=False) as pool:
        limiter = AsyncRateLimiter({given["name"]: given["config"]}, db=pool)
        async with limiter.borrow(given["name"], **given["options"]) as local:

            async def spends():
                n = 0
                while not stopped:
                    count, before = random.randint(1, 3), real_time()
                    if local.take(count=count) or await local.limit(count=count):
                        wrote(before, count)
                    else:
                        await asyncio.sleep(0.001)
                    step(n := n + 1)
                    if n % 20 == 0:
                        await asyncio.sleep(0)

            await asyncio.gather(spends(), spends())


threading.Thread(target=stops, daemon=True).start()
print("begun", flush=True)
if given["kind"] == "sync":
    threads()
else:
    asyncio.run(tasks())
