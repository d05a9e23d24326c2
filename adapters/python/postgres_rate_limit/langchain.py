"""Limits and budgets for models of LangChain.

    model = ChatModel(rate_limiter=RequestLimiter(limiter, "requests", "acme"))
    model.invoke("…", config={"callbacks": [BudgetHandler(budget)]})

RequestLimiter waits until a request may be sent; BudgetHandler denies, by RateLimitExceeded.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from threading import Lock
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.rate_limiters import BaseRateLimiter

from postgres_rate_limit._calls import Key
from postgres_rate_limit._client import AsyncRateLimiter, HoldAll, RateLimiter, _Patience
from postgres_rate_limit._configs import Config
from postgres_rate_limit._results import RateLimitExceeded, Result
from postgres_rate_limit.budget import Budget, ModelCall, extend

__all__ = ["BudgetHandler", "RequestLimiter"]


class RequestLimiter(BaseRateLimiter):
    """Takes a token of a limit for each request: rate_limiter of a chat model. Blocking, it waits until retry_at, again
    and again; what can never pass raises RateLimitExceeded. With a RateLimiter for both, with an AsyncRateLimiter for
    the asynchronous methods only."""

    def __init__(
        self,
        limiter: RateLimiter[Any] | AsyncRateLimiter[Any],
        name: str,
        key: Key = "",
        *,
        count: float = 1,
        config: Config | None = None,
    ) -> None:
        self._limiter, self._name, self._key = limiter, name, key
        self._count, self._config = count, config

    def acquire(self, *, blocking: bool = True) -> bool:
        if isinstance(self._limiter, AsyncRateLimiter):
            raise TypeError("the limiter is an AsyncRateLimiter; allowed for synchronous calls: a RateLimiter")
        wait = math.inf if blocking else None
        taken = self._limiter.limit(self._name, self._key, count=self._count, wait=wait, config=self._config)
        return self._passes(taken, blocking)

    async def aacquire(self, *, blocking: bool = True) -> bool:
        if isinstance(self._limiter, RateLimiter):
            patience = _Patience(math.inf)
            while True:
                # No thread waits: it would go on, and take a token, after the task was cancelled.
                asked = await asyncio.to_thread(
                    self._limiter.limit, self._name, self._key, count=self._count, config=self._config
                )
                pause = patience.pause(asked.ok, asked.retry_after) if blocking else None
                if pause is None:
                    return self._passes(asked, blocking)
                await asyncio.sleep(pause)
        wait = math.inf if blocking else None
        taken = await self._limiter.limit(self._name, self._key, count=self._count, wait=wait, config=self._config)
        return self._passes(taken, blocking)

    def _passes(self, taken: Result, blocking: bool) -> bool:
        if blocking and not taken.ok:
            raise RateLimitExceeded(self._name, taken.retry_after, taken.retry_at)
        return taken.ok


class BudgetHandler(BaseCallbackHandler):
    """Holds the estimate of each call of a model, and settles its usage: one of the callbacks, of a model or of a run.
    The budget has a RateLimiter; asynchronous calls of the model run it in threads. The function of its limits gets
    the messages, the model's parameters and the run's metadata."""

    raise_error = True  # otherwise LangChain logs a denial, and goes on

    def __init__(self, budget: Budget[RateLimiter[Any]]) -> None:
        self._budget = budget
        self._runs: dict[UUID, tuple[HoldAll, ModelCall]] = {}
        self._lock = Lock()

    def _start(self, run_id: UUID, messages: Any, others: dict[str, Any]) -> None:
        request = {**others.get("invocation_params", {}), "metadata": others.get("metadata") or {}}
        call = self._budget.call({**request, "messages": messages})
        hold = self._budget.hold(call, str(run_id))
        hold.__enter__()
        with self._lock:
            # LangChain reports no end of a run if another of the same call is denied, or if its task is cancelled.
            while self._runs and (oldest := next(iter(self._runs.items())))[1][1].is_left():
                del self._runs[oldest[0]]
            self._runs[run_id] = hold, call

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **others: Any
    ) -> None:
        self._start(run_id, [[each.type, each.content] for each in messages[0]], others)

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **others: Any) -> None:
        self._start(run_id, prompts, others)

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **others: Any) -> None:
        if run := self._runs.get(run_id):
            hold, call = run
            call.has_begun = True
            if call.is_due():
                extend(hold)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **others: Any) -> None:
        if run := self._ended(run_id):
            hold, call = run
            try:
                hold.used = _used(call, response)
            finally:
                hold.__exit__(None, None, None)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **others: Any) -> None:
        if run := self._ended(run_id):
            hold, call = run
            response = others.get("response")
            try:
                hold.used = call.failed(error, _used(call, response) if response else None)
            finally:
                hold.__exit__(type(error), error, None)

    def _ended(self, run_id: UUID) -> tuple[HoldAll, ModelCall] | None:
        with self._lock:
            return self._runs.pop(run_id, None)


def _used(call: ModelCall, response: LLMResult) -> dict[str, float] | float | None:
    """What the model reports, if it does: nothing, if all was in a cache."""
    usages = [_metadata(each) for each in _flat(response.generations)]
    if usages and all(usage.get("total_cost") == 0 for usage in usages):
        return 0
    reported = [usage for usage in usages if "input_tokens" in usage and "output_tokens" in usage]
    if reported:
        return call.used(*(sum(usage[name] for usage in reported) for name in ("input_tokens", "output_tokens")))
    told: dict[str, int] = (response.llm_output or {}).get("token_usage") or {}
    if "prompt_tokens" in told:
        return call.used(told["prompt_tokens"], told.get("completion_tokens", 0))
    return None


def _flat(generations: Sequence[Sequence[Any]]) -> list[Any]:
    return [each for several in generations for each in several]


def _metadata(generation: Any) -> dict[str, Any]:
    return getattr(getattr(generation, "message", None), "usage_metadata", None) or {}
