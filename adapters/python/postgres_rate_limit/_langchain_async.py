"""Budgets for models of LangChain: the callbacks."""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, LLMResult

from postgres_rate_limit._client_async import AsyncRateLimiter
from postgres_rate_limit._leases_async import AsyncHoldAll
from postgres_rate_limit.budget import Budget, ModelCall


class AsyncBudgetHandler(AsyncCallbackHandler):
    """Holds the estimate of each call of a model, and settles its usage: one of the callbacks, of a model or of a
    run. The function of its limits gets the messages, the model's parameters and the run's metadata. The budget has an
    AsyncRateLimiter; asynchronous calls of the model run it, and no others."""

    raise_error = True  # otherwise LangChain logs a denial, and goes on

    def __init__(self, budget: Budget[AsyncRateLimiter[Any]]) -> None:
        self._budget = budget
        # The running calls of models, by their runs.
        self._runs: dict[UUID, tuple[AsyncHoldAll, ModelCall]] = {}
        self._lock = Lock()

    # begin async
    @property
    def ignore_llm(self) -> bool:
        """In synchronous calls LangChain would log a denial, and continue. It asks this before each event, and then
        not inside a loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise TypeError(
                "the handler is an AsyncBudgetHandler; allowed for synchronous calls: a BudgetHandler"
            ) from None
        return False

    @property
    def ignore_chat_model(self) -> bool:
        return self.ignore_llm

    # end async
    async def _start(self, run_id: UUID, messages: Any, others: dict[str, Any]) -> None:
        request = {**others.get("invocation_params", {}), "metadata": others.get("metadata") or {}}
        call = self._budget.call({**request, "messages": messages})
        hold = await self._budget.hold_async(call, str(run_id))
        await hold.__aenter__()
        with self._lock:
            # LangChain reports no end of a run if another of the same call is denied, or if its task is cancelled.
            while self._runs and (oldest := next(iter(self._runs.items())))[1][1].is_left():
                del self._runs[oldest[0]]
            self._runs[run_id] = hold, call

    async def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **others: Any
    ) -> None:
        await self._start(run_id, [_sent(each) for each in messages[0]], others)

    async def on_llm_start(
        self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **others: Any
    ) -> None:
        await self._start(run_id, prompts, others)

    async def on_llm_new_token(self, token: Any, *, run_id: UUID, **others: Any) -> None:
        if run := self._runs.get(run_id):
            hold, call = run
            chunk = others.get("chunk")
            call.came(_sent(chunk.message) if isinstance(chunk, ChatGenerationChunk) else token)
            if call.is_due():
                await hold._keep()

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **others: Any) -> None:
        await self._end(run_id, response, None)

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **others: Any) -> None:
        await self._end(run_id, others.get("response"), error)

    async def _end(self, run_id: UUID, response: LLMResult | None, error: BaseException | None) -> None:
        with self._lock:
            run = self._runs.pop(run_id, None)
        if run is None:
            return
        hold, call = run
        try:
            hold.used = _used(call, response, error)
        except Exception as failure:  # an answer of an unknown shape
            call.unsettled(None, failure)
        await hold.__aexit__(None if error is None else type(error), error, None)


def _used(call: ModelCall, response: LLMResult | None, error: BaseException | None) -> Any:
    """The use to settle, by the model's report."""
    if response is not None:
        answers: list[Any] = [each for several in response.generations for each in several]
        usages = [_metadata(each) for each in answers]
        if error is None and usages and all(usage.get("total_cost") == 0 for usage in usages):
            return 0  # the answer came from a cache
        reported: list[Any] = [usage for usage in usages if "input_tokens" in usage and "output_tokens" in usage]
        call.reported(*(reported or [(response.llm_output or {}).get("token_usage")]))
        if error is None and not call.has_begun:
            call.came([_sent(each.message) if hasattr(each, "message") else each.text for each in answers])
    return call.ended(error)


def _sent(message: BaseMessage) -> dict[str, Any]:
    """A message in the fields of OpenAI. Calls of tools that some providers repeat in the content are included once."""
    sent: dict[str, Any] = {"role": message.type, "content": message.content}
    blocks = message.content if isinstance(message.content, list) else []
    kinds = {block.get("type") for block in blocks if isinstance(block, dict)}
    calls = getattr(message, "tool_call_chunks", None)
    if not calls:
        calls = [*getattr(message, "tool_calls", ()), *getattr(message, "invalid_tool_calls", ())]
    if calls and not kinds & {"tool_use", "tool_call", "function_call"}:
        sent["tool_calls"] = calls
    elif called := message.additional_kwargs.get("function_call"):
        sent["function_call"] = called
    return sent


def _metadata(generation: Any) -> dict[str, Any]:
    message = getattr(generation, "message", None)
    usage = getattr(message, "usage_metadata", None) or {}
    cost = ((getattr(message, "response_metadata", None) or {}).get("token_usage") or {}).get("cost")
    return usage if cost is None else {**usage, "cost": cost}
