# Made from _openai_async.py by scripts/async_to_sync.py: change that one.
"""The calls of a client of OpenAI within a budget."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from openai.resources.chat.completions import Completions

from postgres_rate_limit.budget import Budget, ModelCall


class Budgeted:
    def __init__(self, calls: Any, budget: Budget[Any]) -> None:
        self._calls = calls
        self._budget = budget

    def create(self, *, hold_id: str | None = None, **request: Any) -> Any:
        call = self._budget.call(request)
        if request.get("stream"):
            chunks = self._stream(call, request, hold_id)
            chunks.__next__()
            return _Stream(chunks)
        with self._budget.hold(call, hold_id) as hold:
            try:
                answer = self._calls.create(**request)
            except BaseException as error:
                hold.used = call.ended(error)
                raise
            call.heard(answer)
            hold.used = call.ended()
            return answer

    def _stream(self, call: ModelCall, request: dict[str, Any], hold_id: str | None) -> Generator[Any, None, None]:
        options, hides_usage = request.get("stream_options") or {}, False
        # Some services refuse it; without a report all that was held is settled.
        if isinstance(self._calls, Completions) and options.get("include_usage") is not False:
            hides_usage = not options.get("include_usage")
            request = {**request, "stream_options": {**options, "include_usage": True}}
        with self._budget.hold(call, hold_id) as hold:
            try:
                with self._calls.create(**request) as stream:
                    yield  # it is open
                    for chunk in stream:
                        call.heard(chunk)
                        if call.is_due():
                            hold._keep()
                        # Azure's first chunk has no choices, only its filter results.
                        if not hides_usage or chunk.choices or getattr(chunk, "usage", None) is None:
                            yield chunk
            except BaseException as error:
                hold.used = call.ended(error)
                raise
            hold.used = call.ended()


class _Stream:
    """The chunks of an answer. close, the end of `with` and garbage collection settle, too."""

    def __init__(self, chunks: Generator[Any, None, None]) -> None:
        self._chunks = chunks

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        return self._chunks.__next__()

    def close(self) -> None:
        self._chunks.close()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
