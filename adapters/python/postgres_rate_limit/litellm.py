"""Budgets of asynchronous calls by LiteLLM: acompletion, and that of its Router.

    litellm.callbacks.append(BudgetLogger(Budget(limiter, limits)))

A denial raises RateLimitExceeded, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import weakref
from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from litellm.integrations.custom_logger import CustomLogger

from postgres_rate_limit._client_async import AsyncRateLimiter
from postgres_rate_limit._leases_async import AsyncHoldAll
from postgres_rate_limit.budget import Budget, ModelCall

__all__ = ["BudgetLogger"]


class _Running(NamedTuple):
    call: ModelCall
    hold: AsyncHoldAll
    ended: Future[BaseException | None]
    """Cancelled: LiteLLM has forgotten the call."""
    settles: Task[None]
    began: datetime
    reports: bool
    """Whether the usage of the answer is the model's; otherwise LiteLLM has counted the tokens itself."""


class BudgetLogger(CustomLogger):
    """Holds the estimate of each attempt of a call, and settles its usage. The function of its limits gets the
    arguments of the call, with its user and metadata. litellm_call_id is the id of the hold."""

    def __init__(self, budget: Budget[AsyncRateLimiter[Any]]) -> None:
        super().__init__()
        self._budget = budget
        self._calls: dict[str, _Running] = {}

    async def async_pre_call_deployment_hook(self, kwargs: Any, call_type: Any) -> dict[str, Any] | None:
        if getattr(call_type, "value", call_type) != "acompletion":
            return None
        id = kwargs["litellm_call_id"]
        call = self._budget.call(kwargs)
        hold = await self._budget.hold_async(call, id)
        await hold.__aenter__()
        if before := self._calls.pop(id, None):
            before.settles.cancel()  # the hold is this call's now
        loop = asyncio.get_running_loop()
        ended: Future[BaseException | None] = loop.create_future()
        settles = loop.create_task(self._settle(id, call, hold, ended))
        options = kwargs.get("stream_options") or {}
        reports = not kwargs.get("stream") or options.get("include_usage") is not False
        self._calls[id] = _Running(call, hold, ended, settles, datetime.now(), reports)
        # LiteLLM doesn't report that a stream is left, or a call cancelled; it only forgets it.
        weakref.finalize(kwargs["litellm_logging_obj"], _forgotten, loop, ended).atexit = False
        if not kwargs.get("stream") or not reports:  # some services refuse it
            return None
        return {**kwargs, "stream_options": {**options, "include_usage": True}}

    async def async_post_call_success_deployment_hook(self, request_data: Any, response: Any, call_type: Any) -> None:
        await self._end(request_data, response, None)

    async def async_post_call_failure_deployment_hook(
        self, request_data: Any, exception: Exception, call_type: Any, fallback_depth: int | None = None
    ) -> None:
        await self._end(request_data, None, exception)

    # The callbacks of streams.

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        await self._end(kwargs, response_obj, None)

    async def async_log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        await self._end(kwargs, None, kwargs.get("exception"))

    async def _end(self, kwargs: Mapping[str, Any], response: Any, error: BaseException | None) -> None:
        running = self._calls.get(kwargs.get("litellm_call_id", ""))
        if running is None or running.ended.done():
            return
        if kwargs.get("cache_hit"):
            running.hold.used = 0
        elif error is None:
            running.call.heard(response, running.reports)
        else:
            # Whether a chunk of this attempt has come.
            known: Any = kwargs.get("litellm_logging_obj")
            first = getattr(known, "completion_start_time", kwargs.get("completion_start_time"))
            running.call.has_begun = first is not None and first >= running.began
        running.ended.set_result(error)
        await asyncio.shield(running.settles)

    async def _settle(self, id: str, call: ModelCall, hold: AsyncHoldAll, ended: Future[BaseException | None]) -> None:
        """Extends the hold until the call ends, because LiteLLM reports no chunks; then settles it."""
        while not (await asyncio.wait([ended], timeout=self._budget._interval))[0]:
            await hold._keep()
        del self._calls[id]
        error = asyncio.CancelledError() if ended.cancelled() else ended.result()
        if hold.used is None:
            hold.used = call.ended(error)
        await hold.__aexit__(None if error is None else type(error), error, None)


def _forgotten(loop: AbstractEventLoop, ended: Future[BaseException | None]) -> None:
    """Runs in any thread."""
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(ended.cancel)
