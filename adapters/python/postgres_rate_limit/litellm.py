"""Budgets of asynchronous calls by LiteLLM: acompletion, and those of its Router.

    litellm.callbacks.append(BudgetLogger(Budget(limiter, limits, on_expiry="charge")))

A denial raises RateLimitExceeded, and nothing is sent. LiteLLM reports no stream that its user ends: its hold expires.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from postgres_rate_limit._client import AsyncHoldAll, AsyncRateLimiter
from postgres_rate_limit.budget import Budget, ModelCall

__all__ = ["BudgetLogger"]


class BudgetLogger(CustomLogger):
    """Holds the estimate of each attempt of a call, and settles its usage. The function of its limits gets the arguments
    of the call, with its user and metadata. litellm_call_id is the id of the hold."""

    def __init__(self, budget: Budget[AsyncRateLimiter[Any]]) -> None:
        super().__init__()
        self._budget = budget
        self._calls: dict[str, tuple[AsyncHoldAll, ModelCall]] = {}

    async def async_pre_call_deployment_hook(self, kwargs: Any, call_type: Any) -> dict[str, Any] | None:
        if getattr(call_type, "value", call_type) != "acompletion":
            return None
        id = kwargs["litellm_call_id"]
        call = self._budget.call(kwargs)
        hold = await self._budget.hold_async(call, id)
        await hold.__aenter__()
        self._calls[id] = hold, call
        if not kwargs.get("stream"):
            return None
        # Otherwise LiteLLM would count the tokens itself.
        return {**kwargs, "stream_options": {**(kwargs.get("stream_options") or {}), "include_usage": True}}

    async def async_post_call_success_deployment_hook(self, request_data: Any, response: Any, call_type: Any) -> None:
        await self._end(request_data, response, None)

    async def async_post_call_failure_deployment_hook(
        self, request_data: Any, exception: Exception, call_type: Any, fallback_depth: int | None = None
    ) -> None:
        await self._end(request_data, None, exception)

    # These hear of streams.

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        await self._end(kwargs, response_obj, None)

    async def async_log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        await self._end(kwargs, None, kwargs.get("exception"))

    async def _end(self, kwargs: Mapping[str, Any], response: Any, error: BaseException | None) -> None:
        found = self._calls.pop(kwargs.get("litellm_call_id", ""), None)
        if found is None:
            return
        hold, call = found
        usage = getattr(response, "usage", None)
        if kwargs.get("cache_hit"):
            hold.used = 0
        elif error is not None:
            hold.used = call.failed(error, None)
        elif usage is not None:
            hold.used = call.used(usage.prompt_tokens, usage.completion_tokens)
        await hold.__aexit__(None if error is None else type(error), error, None)
