"""Limits and budgets for models of LangChain.

    model.invoke("…", config={"callbacks": [BudgetHandler(budget)]})
    await model.ainvoke("…", config={"callbacks": [AsyncBudgetHandler(budget)]})
    model = ChatModel(rate_limiter=RequestLimiter(limiter, "requests", "acme"))

The handlers deny, by RateLimitExceeded. RequestLimiter waits until a request may be sent; LangChain asks it after the
handlers, and their holds would wait with it: with a budget, its requests are one of the budget's limits, and the budget
waits.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from langchain_core.rate_limiters import BaseRateLimiter

from postgres_rate_limit._calls import Key
from postgres_rate_limit._client_async import AsyncRateLimiter
from postgres_rate_limit._client_sync import RateLimiter
from postgres_rate_limit._configs import Config
from postgres_rate_limit._langchain_async import AsyncBudgetHandler
from postgres_rate_limit._langchain_sync import BudgetHandler
from postgres_rate_limit._results import told
from postgres_rate_limit._waits import Patience

__all__ = ["AsyncBudgetHandler", "BudgetHandler", "RequestLimiter"]


class RequestLimiter(BaseRateLimiter):
    """Takes a token of a limit for each request: the rate_limiter of a chat model. Blocking, it waits until
    retry_at, again and again; a request that can never pass raises RateLimitExceeded. With a RateLimiter for both,
    with an AsyncRateLimiter for the asynchronous methods only."""

    def __init__(
        self,
        limiter: RateLimiter[Any] | AsyncRateLimiter[Any],
        name: str,
        key: Key = "",
        *,
        count: float = 1,
        config: Config | None = None,
    ) -> None:
        self._limiter, self._name = limiter, name
        self._asked: dict[str, Any] = {"name": name, "key": key, "count": count, "config": config}

    def acquire(self, *, blocking: bool = True) -> bool:
        if isinstance(self._limiter, AsyncRateLimiter):
            raise TypeError("the limiter is an AsyncRateLimiter; allowed for synchronous calls: a RateLimiter")
        return self._limiter.limit(**self._asked, wait=math.inf if blocking else None, throws=blocking).ok

    async def aacquire(self, *, blocking: bool = True) -> bool:
        if isinstance(self._limiter, RateLimiter):
            patience = Patience(math.inf)
            while True:
                # No thread waits: it would continue, and take a token, after the task was cancelled.
                asked = await asyncio.to_thread(self._limiter.limit, **self._asked)
                pause = patience.pause(asked.ok, asked.retry_after) if blocking else None
                if pause is None:
                    return told(asked, blocking, self._name).ok
                await asyncio.sleep(pause)
        return (await self._limiter.limit(**self._asked, wait=math.inf if blocking else None, throws=blocking)).ok
