"""The calls of a client of OpenAI within a budget."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from openai.resources.chat.completions import AsyncCompletions

from postgres_rate_limit.budget import Budget, ModelCall


class _Asked:
    """A request, and the part of its answer that the caller sees."""

    def __init__(self, budget: Budget[Any], calls: Any, request: dict[str, Any]) -> None:
        self.call: ModelCall = budget.call(request)
        self.request = request
        self.is_chat = isinstance(calls, AsyncCompletions)
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


class AsyncBudgeted:
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
                    yield  # it is open
                    async for chunk in stream:
                        asked.call.heard(chunk)
                        if asked.call.is_due():
                            await hold._keep()
                        if asked.shows(chunk):
                            yield chunk
            except BaseException as error:
                hold.used = asked.call.ended(error)
                raise
            hold.used = asked.call.ended()


class _AsyncStream:
    """The chunks of an answer. close, the end of `async with` and garbage collection settle, too."""

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

    async def __aexit__(self, *_: object) -> None:
        await self.close()
