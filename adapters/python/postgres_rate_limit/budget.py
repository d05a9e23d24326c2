"""Budgets of calls to language models, on any of several limits at once: an estimate is held before the call, and
settled with the usage that the model reports. Knows no model: openai, langchain and litellm next to it make the calls.

    budget = Budget(limiter, [
        {"name": "generations", "key": "acme"},
        {"name": "llmTokens", "key": "ada", "count": "tokens"},
        {"name": "microUsd", "key": "acme", "count": lambda usage: usage.input_tokens * 3 + usage.output_tokens * 15},
    ])
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil, inf
from typing import Any, Generic, Literal, TypeVar, Union

from postgres_rate_limit._calls import Key, Named, OnExpiry, Request, seconds_of
from postgres_rate_limit._client_async import AsyncRateLimiter
from postgres_rate_limit._client_sync import RateLimiter
from postgres_rate_limit._configs import Config
from postgres_rate_limit._leases_async import AsyncHoldAll
from postgres_rate_limit._leases_sync import HoldAll
from postgres_rate_limit._results import Unsettled, chain, tell_unsettled
from postgres_rate_limit._waits import Pending

__all__ = ["Budget", "Limit", "ModelCall", "Unreported", "Unsettled", "Usage", "estimate_input"]

L = TypeVar("L", RateLimiter[Any], AsyncRateLimiter[Any])
H = TypeVar("H", HoldAll, AsyncHoldAll)


@dataclass(frozen=True)
class Usage:
    """The estimated or actual use of a call."""

    input_tokens: int
    output_tokens: int
    model: str = ""
    cached_tokens: int = 0
    """The part of the input that came from a cache; 0 in an estimate."""
    reasoning_tokens: int = 0
    """The part of the output that was reasoning; 0 in an estimate."""
    cost: float | None = None
    """The cost reported by the service, for example OpenRouter, in its unit; None: not reported, or an estimate."""
    report: Any = None
    """The report itself, for its other fields; None: this is an estimate."""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True)
class Unreported:
    """The argument of unreported: a call that may have reached the model, without a reported usage."""

    held: Usage
    """The estimate."""
    streamed: Usage
    """The prompt as estimated, and the answer received: a token for three bytes of its text. For a stream that broke
    or was ended LiteLLM doesn't have the answer: 0."""
    error: BaseException | None
    """The error that ended the call: a GeneratorExit or CancelledError, if its user did; None: none."""


Count = Union[float, Literal["tokens", "input_tokens", "output_tokens"], Callable[[Usage], float]]


class Limit(Named, total=False):
    """A limit that a call takes from. count: 1, the default, for requests and slots; "tokens" or one of the other
    texts; or a price, from a function, which is called twice: with the estimate and with the usage."""

    key: Key
    count: Count
    config: Config


Limits = Union[Iterable[Limit], Callable[[Mapping[str, Any]], Iterable[Limit]]]


def estimate_input(request: Mapping[str, Any]) -> int:
    """The tokens that the model reads, counted as described in docs/llm-budgets.md: in the shapes of OpenAI,
    Anthropic, LangChain and LiteLLM."""
    sent = [_pieces(request.get(each)) for each in _SENT]
    sent += [_json(each) for name in _SCHEMAS for each in _listed(request.get(name))]
    if isinstance(text := request.get("text"), Mapping):
        sent.append(_json(text.get("format")))
    return sum(ceil(text / 3) + media for pieces in sent for text, media in pieces)


# The fields of requests that the model reads, and the fields of which it reads the JSON.
_SENT = ("system", "messages", "instructions", "input", "prompt")
_SCHEMAS = ("tools", "functions", "response_format", "output_format", "output_config")
_PICTURE, _FILE = 1600, 5000
_PICTURES = {"image", "image_url", "input_image", "image_file", "computer_screenshot", "image_generation_call"}
_FILES = {
    "file", "input_file", "document", "input_audio", "audio", "audio_url", "video", "video_url", "input_video", "media",
}  # fmt: skip
_TYPES = ("mime_type", "media_type", "mimeType")
# The arguments in a call of a tool, in its shapes; the model reads their JSON.
_ARGUMENTS = {"arguments", "input", "args"}
# Fields that are not text for the model.
_AROUND = {
    "type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "item_id", "index", "status", "detail",
    "cache_control", "annotations", "logprobs", "source_type", *_TYPES,
}  # fmt: skip


def _pieces(sent: Any) -> Iterator[tuple[int, int]]:
    """Yields the bytes of each text, and the tokens of each picture or file."""
    if isinstance(sent, str):
        yield len(sent.encode(errors="surrogatepass")), 0
    elif isinstance(sent, (bytes, bytearray)):
        yield 0, _FILE
    elif isinstance(sent, (list, tuple)):
        for each in sent:
            yield from _pieces(each)
    elif isinstance(sent, Mapping):
        media = _media(sent)
        if media:
            yield 0, media
            return
        for name, each in sent.items():
            if name in _ARGUMENTS and not isinstance(each, str):
                yield from _json(each)
            elif name == "audio" and each:  # an earlier answer of the model
                yield 0, _FILE
            elif name not in _AROUND:
                yield from _pieces(each)
    elif hasattr(sent, "model_dump"):  # an answer of a client, which is sent again
        yield from _pieces(sent.model_dump(exclude_none=True))


def _media(block: Mapping[str, Any]) -> int:
    """The tokens of a picture or file; 0: neither, or a text file, which is read as text."""
    kind, source = block.get("type"), block.get("source")
    if kind in _PICTURES:
        return _PICTURE
    of = source if isinstance(source, Mapping) else block
    mime = str(_field(of, _TYPES) or "")
    if kind in _FILES or (kind is None and mime):
        if "text" in (of.get("type"), of.get("source_type")) or of.get("type") == "content":
            return 0
        return _PICTURE if mime.startswith("image/") else _FILE
    return 0


def _json(sent: Any) -> Iterator[tuple[int, int]]:
    """The text of its JSON, if any."""
    if sent:
        yield from _pieces(json.dumps(sent, ensure_ascii=False, separators=(",", ":"), default=_plain))


def _plain(sent: Any) -> Any:
    """A pydantic model, or its class, which LiteLLM takes for a schema; or another object without a JSON form."""
    if isinstance(sent, type) and hasattr(sent, "model_json_schema"):
        return sent.model_json_schema()
    return sent.model_dump() if hasattr(sent, "model_dump") else str(sent)


def _listed(given: Any) -> Sequence[Any]:
    return given if isinstance(given, (list, tuple)) else [given]


class Budget(Generic[L]):
    """The limits of calls to a model. Threads and tasks may share it."""

    def __init__(
        self,
        limiter: L,
        limits: Limits,
        *,
        output_tokens: int = 1000,
        estimate: Callable[[Mapping[str, Any]], int] = estimate_input,
        ttl: timedelta | float = timedelta(minutes=2),
        on_expiry: OnExpiry = "refund",
        wait: timedelta | float | None = None,
        unreported: Callable[[Unreported], Usage | None] | None = None,
        on_unsettled: Callable[[Unsettled], object] | None = None,
    ) -> None:
        """
        limiter: on a pool or an engine, because a hold is committed before the call.
        limits: or a function that returns them, given the request to the model.
        output_tokens: the estimate if the request has no maximum.
        estimate: returns the tokens of the prompt.
        ttl: the time until a hold expires: longer than the longest call, or the longest pause in a stream.
        on_expiry: what to do with the hold of a dead process; "charge": it stays taken.
        wait: seconds for which a denied call waits until all of its limits admit it, if they do by then; nothing is
            held meanwhile.
        unreported: returns the usage of a call that reported none, such as the part streamed until its user ended it;
            None: everything held. Default: everything held.
        on_unsettled: called with a hold that could not be settled, or is settled as held because a count or unreported
            failed; the answer is returned all the same. Default: a warning is logged.
        """
        self._unreported, self._on_unsettled = unreported, on_unsettled
        self.limiter: L = limiter
        self._limits = limits if callable(limits) else list(limits)
        self._output_tokens, self._estimate = output_tokens, estimate
        self._holding: dict[str, Any] = {"ttl": ttl, "on_expiry": on_expiry, "on_exception": "charge", "wait": wait}
        self._interval = seconds_of(ttl) / 2
        """Seconds after which the hold of a stream is extended."""

    def call(self, request: Mapping[str, Any]) -> ModelCall:
        """The hold for a request to the model, in the fields of OpenAI."""
        given = self._limits(request) if callable(self._limits) else self._limits
        # OpenAI has objects that mark a field as not given.
        most = next((request[each] for each in _MOST if isinstance(request.get(each), int)), self._output_tokens)
        thoughts = _field(request.get("thinking"), ("budget_tokens",))
        if isinstance(thoughts, int) and thoughts > most:  # otherwise they are among them
            most += thoughts
        estimate = Usage(self._estimate(request), most * (request.get("n") or 1), str(request.get("model") or ""))
        return ModelCall(self, list(given), estimate)

    def hold(self, call: ModelCall, id: str | None = None) -> HoldAll:
        """Takes the estimate; entering it raises RateLimitExceeded with the wait."""
        if not isinstance(self.limiter, RateLimiter):
            raise TypeError("the budget has an AsyncRateLimiter; allowed here: a RateLimiter")
        return call.has(self.limiter.hold_all(call.requests, id=id, **self._holding))

    def hold_async(self, call: ModelCall, id: str | None = None) -> Pending[AsyncHoldAll]:
        """As hold."""
        if not isinstance(self.limiter, AsyncRateLimiter):
            raise TypeError("the budget has a RateLimiter; allowed here: an AsyncRateLimiter")
        pending = self.limiter.hold_all(call.requests, id=id, **self._holding)

        async def start() -> AsyncHoldAll:
            return call.has(await pending)

        return Pending(start)


def read_usage(reports: Iterable[Any], model: str = "") -> Usage | None:
    """The sum of the reports of models, by the names of OpenAI and LangChain. None: one has no numbers, or only
    zeros, with which LiteLLM fills in a usage that was not reported."""
    found = []
    for report in reports:
        read, written = _field(report, _INPUT), _field(report, _OUTPUT)
        if read is None or written is None or not (read or written):
            return None
        of_input, of_output = _field(report, _OF_INPUT), _field(report, _OF_OUTPUT)
        cached, thought = _field(of_input, _CACHED) or 0, _field(of_output, _THOUGHT) or 0
        found.append((read, written, cached, thought, _field(report, ("cost",)), report))
    if not found:
        return None
    read, written, cached, thought, costs, given = zip(*found)
    cost = None if None in costs else sum(costs)
    return Usage(
        sum(read), sum(written), model, sum(cached), sum(thought), cost, given[0] if len(given) == 1 else given
    )


_INPUT, _OUTPUT = ("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")
_OF_INPUT = ("input_tokens_details", "prompt_tokens_details", "input_token_details")
_OF_OUTPUT = ("output_tokens_details", "completion_tokens_details", "output_token_details")
_CACHED, _THOUGHT = ("cached_tokens", "cache_read"), ("reasoning_tokens", "reasoning")


def _field(of: Any, names: Iterable[str]) -> Any:
    found = (of.get(name) if isinstance(of, Mapping) else getattr(of, name, None) for name in names)
    return next((each for each in found if each is not None), None)


# The fields by which requests limit the tokens of an answer.
_MOST = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class ModelCall:
    """One call of a model."""

    def __init__(self, budget: Budget[Any], limits: list[Limit], estimate: Usage) -> None:
        counts: dict[str, Count] = {}
        for limit in limits:
            count = limit.get("count", 1)
            if counts.setdefault(limit["name"], count) != count:
                raise TypeError(
                    f'the limit "{limit["name"]}" comes twice, with the counts {counts[limit["name"]]!r} and {count!r}; '
                    "allowed: the same one, since what was used is settled by names"
                )
        self._budget, self._limits, self.estimate = budget, limits, estimate
        self._usage: Usage | None = None
        self._came = 0
        """The bytes of the answer's text so far."""
        self.id: str | None = None
        """The id of the hold."""
        self._next = time.monotonic() + budget._interval
        self.has_begun = False
        """Whether some of the answer has come: the model has worked."""

    @property
    def requests(self) -> list[Request]:
        """The requests to hold."""
        made: Any = [{**limit, "count": _count(limit, self.estimate)} for limit in self._limits]
        return list(made)

    def has(self, hold: H) -> H:
        """Notes the hold of the call."""
        self.id, hold._hears = hold.id, self.unsettled
        return hold

    def heard(self, answer: Any, reports: bool = True) -> None:
        """Takes an answer, a chunk or an event in the fields of OpenAI: some text, a report of the usage, or both.
        reports: whether it is the model's."""
        choices = getattr(answer, "choices", None) or ()
        parts = [getattr(each, "delta", None) or getattr(each, "message", None) for each in choices]
        self.came([*parts, getattr(answer, "delta", None), getattr(answer, "output", None)])
        # Some events of a stream of Responses have the response.
        usage = getattr(getattr(answer, "response", answer), "usage", None)
        if usage is not None and reports:
            self.reported(usage)

    def came(self, answer: Any) -> None:
        """Notes that some or all of the answer has come."""
        self.has_begun = True
        self._came += sum(text for text, _ in _pieces(answer))

    def reported(self, *reports: Any) -> None:
        """Takes reports of the model, if they have the numbers."""
        self._usage = read_usage(reports, self.estimate.model) or self._usage

    def ended(self, error: BaseException | None = None) -> Any:
        """The use to settle, by the names of the limits: as reported; nothing if the call was never sent; limits
        without tokens if it was refused; or the estimate of unreported. Everything held (None) if a count fails on
        it: the answer has come, and is paid."""
        if self._usage is not None:
            return self._counts(self._usage)
        for each in () if error is None or self.has_begun else chain(error):
            status = getattr(each, "status_code", None)
            if isinstance(status, int) and status >= 400:
                if status in (408, 504):
                    break  # the model may have worked
                return self._counts(Usage(0, 0, self.estimate.model))
            if type(each).__name__ in ("ConnectError", "ConnectTimeout") or isinstance(each, ConnectionRefusedError):
                return 0
        if self._budget._unreported is None:
            return None
        held = self.estimate
        streamed = Usage(held.input_tokens, ceil(self._came / 3), held.model)
        try:
            usage = self._budget._unreported(Unreported(held, streamed, error))
        except Exception as failure:
            self.unsettled(None, failure)
            return None
        return None if usage is None else self._counts(usage)

    def _counts(self, usage: Usage) -> dict[str, float] | None:
        try:
            counts = {limit["name"]: _count(limit, usage) for limit in self._limits}
            for name, count in counts.items():
                if isinstance(count, str) or not 0 <= count < inf:
                    raise ValueError(f'the count of "{name}" is {count!r}; allowed: a number from 0 on')
            return counts
        except Exception as error:
            self.unsettled(None, error)
            return None

    def unsettled(self, used: Any, error: BaseException) -> None:
        """Reports that the hold could not be settled by the actual use; raises nothing."""
        tell_unsettled(self._budget._on_unsettled, self.id, used, error)

    def is_due(self) -> bool:
        """Whether the hold of a stream has to be extended: halfway to its expiry."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._budget._interval
        return True

    def is_left(self) -> bool:
        """Whether the hold expired so long ago that no end of the call will be reported."""
        return time.monotonic() > self._next + self._budget._interval + _DAY


_DAY = 86_400


def _count(limit: Limit, usage: Usage) -> float:
    count = limit.get("count", 1)
    if callable(count):
        return count(usage)
    return float(getattr(usage, count)) if isinstance(count, str) else count
