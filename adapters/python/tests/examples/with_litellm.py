"""The example of docs/llm-budgets.md for LiteLLM."""

from collections.abc import Mapping
from typing import Any

from psycopg_pool import AsyncConnectionPool

from postgres_rate_limit import AsyncRateLimiter, fixed_window
from postgres_rate_limit.budget import Budget, Limit, Usage
from postgres_rate_limit.litellm import BudgetLogger

MONTHLY = fixed_window(50_000_000, "1 month", timezone="UTC")


def price(usage: Usage) -> float:
    """In millionths of a dollar: yours, by usage.model."""
    return usage.input_tokens * 3 + usage.output_tokens * 15


def limits(call: Mapping[str, Any]) -> list[Limit]:
    return [{"name": "microUsd", "key": call["user"], "count": price}]


def logger(pool: AsyncConnectionPool[Any]) -> BudgetLogger:
    """One of litellm.callbacks: acompletion(model=…, messages=…, user="acme") raises RateLimitExceeded if denied."""
    limiter = AsyncRateLimiter({"microUsd": MONTHLY}, db=pool)
    return BudgetLogger(Budget(limiter, limits, on_expiry="charge"))
