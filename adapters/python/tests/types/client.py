# pyright: strict, reportUnknownMemberType=false, reportUnusedCoroutine=false, reportUnusedExpression=false
"""What type checkers must accept, and what they must refuse. An ignored error that isn't one is an error itself."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from postgres_rate_limit import (
    MINUTE,
    AsyncHold,
    AsyncRateLimiter,
    Decision,
    Hold,
    Lease,
    LimitedBy,
    RateLimiter,
    RateLimitExceeded,
    RequestResult,
    Result,
    concurrency,
    fixed_window,
    token_bucket,
)

Names = Literal["sendMessage", "export"]
LIMITS = {"sendMessage": token_bucket(10, MINUTE), "export": concurrency(2, 5 * MINUTE)}

limiter = RateLimiter[Names]({"sendMessage": token_bucket(10, MINUTE), "export": {"kind": "unlimited"}})
any_name = RateLimiter(LIMITS)
names_only = RateLimiter(["sendMessage", "export"], defined=True)
asynchronous = AsyncRateLimiter[Names](["sendMessage"], defined=True)


def log(decision: Decision) -> None:
    print(decision.name, decision.ok, decision.seconds)


def right(user: UUID) -> None:
    result: Result = limiter.limit("sendMessage", user, count=2, wait=1.5)
    wait: float | None = result.retry_after
    at: datetime | None = result.retry_at
    by: LimitedBy | None = result.limited_by
    any_name.limit("whatever", config=fixed_window(1, MINUTE, timezone="UTC"))
    lease: Lease
    with limiter.acquire("export", 7) as lease:
        lease.extend()
    hold: Hold
    with limiter.hold("sendMessage", "ada", ttl=timedelta(minutes=1)) as hold:
        hold.used = 3
    results = limiter.limit_all([{"name": "sendMessage", "key": user, "count": 2}])
    denying: RequestResult | None = results.denied_by
    print(wait, at, by, denying, results.results[0].limited_by, limiter.value("sendMessage")["blockedUntil"])
    RateLimiter(LIMITS, on_decision=log)


def by_argument(any_limiter: RateLimiter, error: RateLimitExceeded) -> float | None:
    any_limiter.check("sendMessage")
    return error.retry_after


async def right_async() -> None:
    result: Result = await asynchronous.limit("sendMessage")
    hold: AsyncHold
    async with asynchronous.hold("sendMessage") as hold:
        await hold.settle(1)
    hold = await asynchronous.hold("sendMessage")
    print(result, hold)


def wrong() -> None:
    limiter.limit("sendMessages")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    limiter.limit("sendMessage", None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    limiter.limit("sendMessage", counts=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    limiter.limit("sendMessage", headers="http")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    limiter.hold("sendMessage", on_expiry="keep")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    limiter.limit_all([{"key": "a"}])  # type: ignore[typeddict-item]  # pyright: ignore[reportArgumentType]
    RateLimiter[Names]({"other": {}})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    token_bucket(10, 60)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def wrong_async() -> None:
    with asynchronous.hold("sendMessage"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    asynchronous.limit("sendMessage").ok  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
