"""Rate limits in PostgreSQL, by the extension ratelimit or its SQL file, in the caller's own transaction.

    limiter = RateLimiter({"sendMessage": token_bucket(10, MINUTE)}, db=pool)
    if not limiter.limit("sendMessage", user, db=connection): …

The modules: limits counts the limits of the package limits, and rest_framework those of Django REST framework;
django_cache is a cache that counts, and pyrate_limiter has buckets; budget, openai, langchain and litellm hold what
calls to models may cost; testing has fixtures of pytest.
"""

from postgres_rate_limit._addresses import address_key
from postgres_rate_limit._borrowed_async import AsyncBorrowed
from postgres_rate_limit._borrowed_sync import Borrowed
from postgres_rate_limit._calls import HeaderStyle, Key, Request
from postgres_rate_limit._client_async import AsyncRateLimiter
from postgres_rate_limit._client_sync import RateLimiter
from postgres_rate_limit._configs import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    WEEK,
    Config,
    concurrency,
    fixed_window,
    sliding_log,
    sliding_window,
    token_bucket,
    unlimited,
)
from postgres_rate_limit._http import TooManyRequests, too_many_requests, try_again
from postgres_rate_limit._leases_async import AsyncHold, AsyncHoldAll, AsyncLease
from postgres_rate_limit._leases_sync import Hold, HoldAll, Lease
from postgres_rate_limit._results import (
    AllResult,
    BorrowResult,
    Decision,
    HoldRequestResult,
    LimitedBy,
    RateLimitExceeded,
    RequestResult,
    Result,
    SettleResult,
    SetupError,
    UnknownLimit,
    Unsettled,
    Value,
)
from postgres_rate_limit._sql import install, install_sql

__all__ = [
    "DAY",
    "HOUR",
    "MINUTE",
    "SECOND",
    "WEEK",
    "AllResult",
    "AsyncBorrowed",
    "AsyncHold",
    "AsyncHoldAll",
    "AsyncLease",
    "AsyncRateLimiter",
    "BorrowResult",
    "Borrowed",
    "Config",
    "Decision",
    "HeaderStyle",
    "Hold",
    "HoldAll",
    "HoldRequestResult",
    "Key",
    "Lease",
    "LimitedBy",
    "RateLimitExceeded",
    "RateLimiter",
    "Request",
    "RequestResult",
    "Result",
    "SettleResult",
    "SetupError",
    "TooManyRequests",
    "UnknownLimit",
    "Unsettled",
    "Value",
    "address_key",
    "concurrency",
    "fixed_window",
    "install",
    "install_sql",
    "sliding_log",
    "sliding_window",
    "token_bucket",
    "too_many_requests",
    "try_again",
    "unlimited",
]
