"""Rate limits in PostgreSQL, by the extension ratelimit or its SQL file, in the caller's own transaction.

    limiter = RateLimiter({"sendMessage": token_bucket(10, MINUTE)}, db=pool)
    if not limiter.limit("sendMessage", user, db=connection): …

The modules: limits counts the limits of the package limits, and rest_framework those of Django REST framework;
django_cache is a cache that counts, and pyrate_limiter has buckets; budget, openai, langchain and litellm hold what
calls to models may cost; testing has fixtures of pytest.
"""

from postgres_rate_limit._addresses import address_key as address_key
from postgres_rate_limit._borrowed_async import AsyncBorrowed as AsyncBorrowed
from postgres_rate_limit._borrowed_sync import Borrowed as Borrowed
from postgres_rate_limit._calls import (
    HeaderStyle as HeaderStyle,
    Key as Key,
    Request as Request,
)
from postgres_rate_limit._client_async import AsyncRateLimiter as AsyncRateLimiter
from postgres_rate_limit._client_sync import RateLimiter as RateLimiter
from postgres_rate_limit._configs import (
    DAY as DAY,
    HOUR as HOUR,
    MINUTE as MINUTE,
    SECOND as SECOND,
    WEEK as WEEK,
    Config as Config,
    concurrency as concurrency,
    fixed_window as fixed_window,
    sliding_log as sliding_log,
    sliding_window as sliding_window,
    token_bucket as token_bucket,
    unlimited as unlimited,
)
from postgres_rate_limit._http import (
    TooManyRequests as TooManyRequests,
    too_many_requests as too_many_requests,
    try_again as try_again,
)
from postgres_rate_limit._leases_async import (
    AsyncHold as AsyncHold,
    AsyncHoldAll as AsyncHoldAll,
    AsyncLease as AsyncLease,
)
from postgres_rate_limit._leases_sync import (
    Hold as Hold,
    HoldAll as HoldAll,
    Lease as Lease,
)
from postgres_rate_limit._results import (
    AllResult as AllResult,
    BorrowResult as BorrowResult,
    Decision as Decision,
    HoldRequestResult as HoldRequestResult,
    LimitedBy as LimitedBy,
    RateLimitExceeded as RateLimitExceeded,
    RequestResult as RequestResult,
    Result as Result,
    SettleResult as SettleResult,
    SetupError as SetupError,
    UnknownLimit as UnknownLimit,
    Unsettled as Unsettled,
    Value as Value,
)
from postgres_rate_limit._sql import (
    install as install,
    install_sql as install_sql,
)
