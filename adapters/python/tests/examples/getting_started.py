"""What docs/getting-started.md shows in Python. test_examples.py runs it."""

from __future__ import annotations

from psycopg_pool import ConnectionPool

from postgres_rate_limit import MINUTE, RateLimiter, token_bucket

pool = ConnectionPool(open=False)

limiter = RateLimiter({"sendMessage": token_bucket(10, MINUTE, keyed=True)}, db=pool)


def send(author: str, body: str) -> float | None:
    with pool.connection() as tx:
        result = limiter.limit("sendMessage", author, count=3, db=tx)
        if result.ok:
            tx.execute("INSERT INTO messages VALUES (%s, %s)", [author, body])
        return result.retry_after  # None, or seconds
