"""The calls of a client of OpenAI within a budget."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from openai.resources.chat.completions import AsyncCompletions

from postgres_rate_limit.budget import Budget, ModelCall


class AsyncBudgeted:
    def __init__(self, calls: Any, budget: Budget[Any]) -> None:
        self._calls = calls
        self._budget = budget

    async def create(self, *, hold_id: str | None = None, **request: Any) -> Any:
        call = self._budget.call(request)
        if request.get("stream"):
            chunks = self._stream(call, request, hold_id)
            await chunks.__anext__()
            return _AsyncStream(chunks)
        async with self._budget.hold_async(call, hold_id) as hold:
            try:
                answer = await self._calls.create(**request)
            except BaseException as error:
                hold.used = call.ended(error)
                raise
            call.heard(answer)
            hold.used = call.ended()
            return answer

    async def _stream(self, call: ModelCall, request: dict[str, Any], hold_id: str | None) -> AsyncGenerator[Any, None]:
        options, hides_usage = request.get("stream_options") or {}, False
        # Some services refuse it; without a report all that was held is settled.
        if isinstance(self._calls, AsyncCompletions) and options.get("include_usage") is not False:
            hides_usage = not options.get("include_usage")
            request = {**request, "stream_options": {**options, "include_usage": True}}
        async with self._budget.hold_async(call, hold_id) as hold:
            try:
                async with await self._calls.create(**request) as stream:
                    yield  # it is open
                    async for chunk in stream:
                        call.heard(chunk)
                        if call.is_due():
                            await hold._keep()
                        # Azure's first chunk has no choices, only its filter results.
                        if not hides_usage or chunk.choices or getattr(chunk, "usage", None) is None:
                            yield chunk
            except BaseException as error:
                hold.used = call.ended(error)
                raise
            hold.used = call.ended()


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
