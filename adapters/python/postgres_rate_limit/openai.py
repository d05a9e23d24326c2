"""Budgets around the client of OpenAI, and of the many services that speak its protocol.

    responses = budgeted(client.responses, budget)
    responses.create(model="gpt-5", input="…", max_output_tokens=500)
    completions = budgeted(client.chat.completions, budget)
    completions.create(model="gpt-5", messages=[…], max_completion_tokens=500)

A denial raises RateLimitExceeded, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import Any, TypeVar, cast

from openai.resources.chat.completions import AsyncCompletions, Completions
from openai.resources.responses import AsyncResponses, Responses

from postgres_rate_limit.budget import Budget, ModelCall, extend, extend_async

__all__ = ["budgeted"]

C = TypeVar("C", Completions, AsyncCompletions, Responses, AsyncResponses)


def budgeted(calls: C, budget: Budget[Any]) -> C:
    """The same client with only create, which also takes hold_id: repeating a call with the id of one that isn't
    settled yet holds nothing twice. Asynchronous with an AsyncRateLimiter, and only then."""
    is_async = isinstance(calls, (AsyncCompletions, AsyncResponses))
    made: Any = _AsyncBudgeted(calls, budget) if is_async else _Budgeted(calls, budget)
    return cast(C, made)


class _Asked:
    """A request, and the part of its answer that the caller sees."""

    def __init__(self, budget: Budget[Any], calls: Any, request: dict[str, Any]) -> None:
        self.call: ModelCall = budget.call(request)
        self.request = request
        self.is_chat = isinstance(calls, (Completions, AsyncCompletions))
        self.hides_usage = False
        if request.get("stream") and self.is_chat:
            options = request.get("stream_options") or {}
            if options.get("include_usage") is False:
                return  # some services refuse it; without a report all that was held is settled
            self.hides_usage = not options.get("include_usage")
            self.request = {**request, "stream_options": {**options, "include_usage": True}}

    def shows(self, chunk: Any) -> bool:
        # Azure's first chunk has no choices, only its filter results.
        return not self.hides_usage or bool(chunk.choices) or getattr(chunk, "usage", None) is None


class _Budgeted:
    def __init__(self, calls: Any, budget: Budget[Any]) -> None:
        self._calls = calls
        self._budget = budget

    def create(self, *, hold_id: str | None = None, **request: Any) -> Any:
        asked = _Asked(self._budget, self._calls, request)
        if request.get("stream"):
            return _Stream(self._stream(asked, hold_id))
        with self._budget.hold(asked.call, hold_id) as hold:
            try:
                answer = self._calls.create(**asked.request)
            except BaseException as error:
                hold.used = asked.call.ended(error)
                raise
            asked.call.heard(answer)
            hold.used = asked.call.ended()
            return answer

    def _stream(self, asked: _Asked, hold_id: str | None) -> Generator[Any, None, None]:
        with self._budget.hold(asked.call, hold_id) as hold:
            try:
                with self._calls.create(**asked.request) as stream:
                    yield  # it is open
                    for chunk in stream:
                        asked.call.heard(chunk)
                        if asked.call.is_due():
                            extend(hold)
                        if asked.shows(chunk):
                            yield chunk
            except BaseException as error:
                hold.used = asked.call.ended(error)
                raise
            hold.used = asked.call.ended()


class _Stream:
    """The chunks of an answer. close, the end of `with` and garbage collection settle, too."""

    def __init__(self, chunks: Generator[Any, None, None]) -> None:
        next(chunks)
        self._chunks = chunks

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        return next(self._chunks)

    def close(self) -> None:
        self._chunks.close()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _AsyncBudgeted:
    def __init__(self, calls: Any, budget: Budget[Any]) -> None:
        self._calls = calls
        self._budget = budget

    async def create(self, *, hold_id: str | None = None, **request: Any) -> Any:
        asked = _Asked(self._budget, self._calls, request)
        if request.get("stream"):
            chunks = self._stream(asked, hold_id)
            await chunks.__anext__()
            return _AsyncStream(chunks)
        async with self._budget.hold_async(asked.call, hold_id) as hold:
            try:
                answer = await self._calls.create(**asked.request)
            except BaseException as error:
                hold.used = asked.call.ended(error)
                raise
            asked.call.heard(answer)
            hold.used = asked.call.ended()
            return answer

    async def _stream(self, asked: _Asked, hold_id: str | None) -> AsyncGenerator[Any, None]:
        async with self._budget.hold_async(asked.call, hold_id) as hold:
            try:
                async with await self._calls.create(**asked.request) as stream:
                    yield
                    async for chunk in stream:
                        asked.call.heard(chunk)
                        if asked.call.is_due():
                            await extend_async(hold)
                        if asked.shows(chunk):
                            yield chunk
            except BaseException as error:
                hold.used = asked.call.ended(error)
                raise
            hold.used = asked.call.ended()


class _AsyncStream:
    """As _Stream, with await."""

    def __init__(self, chunks: AsyncGenerator[Any, None]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> _AsyncStream:
        return self

    async def __anext__(self) -> Any:
        return await self._chunks.__anext__()

    async def close(self) -> None:
        await self._chunks.aclose()

    async def __aenter__(self) -> _AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
