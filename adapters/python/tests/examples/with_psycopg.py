"""Messages with a limit for each user, on a pool of psycopg, which docs/python.md shows. test_examples.py runs it."""

from __future__ import annotations

from psycopg_pool import ConnectionPool

from postgres_rate_limit import HOUR, MINUTE, RateLimiter, Result, fixed_window, token_bucket

pool = ConnectionPool(open=False)
limiter = RateLimiter(
    {
        "sendMessage": token_bucket(10, MINUTE, capacity=3),
        "signUp": fixed_window(100, HOUR),
    },
    db=pool,
)


def send_message(user: str, body: str) -> Result:
    with pool.connection() as connection:  # a transaction: an exception rolls back, and returns the token
        result = limiter.limit("sendMessage", user, db=connection)
        if result.ok:
            connection.execute("INSERT INTO messages VALUES (%s, %s)", [user, body])
        return result  # result.retry_after: seconds


def sign_up() -> None:
    limiter.limit("signUp", throws=True)  # on the pool, and committed; raises RateLimitExceeded
