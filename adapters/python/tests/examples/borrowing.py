"""The example of docs/borrowing.md."""

from psycopg_pool import ConnectionPool

from postgres_rate_limit import SECOND, RateLimiter, token_bucket

pool = ConnectionPool(open=False)
limiter = RateLimiter({"apiRequests": token_bucket(1000, SECOND)}, db=pool)
requests = limiter.borrow("apiRequests", max=100)


def serve(user: str) -> int:
    return 200 if requests.limit(user) else 429
