"""Budgets around models: the estimate is held, and at the end exactly what was used is gone, whatever happens."""

import pytest
from conftest import ON_FILE

if ON_FILE:
    pytest.skip("it is done in the client, and so the same on both editions", allow_module_level=True)

# ruff: noqa: E402
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import openai
from examples import with_langchain, with_openai
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import BaseChatModel, FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from model import RELEASED, model
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessage
from openai.types.responses import ResponseFunctionToolCall, ResponseUsage
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from pydantic import BaseModel

from postgres_rate_limit import (
    HOUR,
    MINUTE,
    AsyncHoldAll,
    AsyncRateLimiter,
    HoldAll,
    RateLimiter,
    RateLimitExceeded,
    concurrency,
    fixed_window,
    token_bucket,
)
from postgres_rate_limit import budget as budgets
from postgres_rate_limit._calls import Calls
from postgres_rate_limit.budget import Budget, ModelCall, Unreported, Usage, estimate_input, read_usage
from postgres_rate_limit.langchain import AsyncBudgetHandler, BudgetHandler, RequestLimiter
from postgres_rate_limit.openai import budgeted

HELLO = [{"role": "user", "content": "hello"}]
# It reports 20 and 10 tokens; at prices of 3 and 15 these are 210.
ONE = {"slots": 0, "requests": 1, "tokens": 30, "usd": 210}
NONE = dict.fromkeys(ONE, 0)


def ignore(text):
    pass


def window(rate):
    return fixed_window(rate, HOUR, start="first request")


class Axes:
    """Limits on four axes, and what is gone of each."""

    def __init__(self, name, pool, slots=100, requests=100, tokens=100_000, usd=10**6):
        self.full = {"slots": slots, "requests": requests, "tokens": tokens, "usd": usd}
        self.names = {axis: f"{axis} of {name}" for axis in self.full}
        self.configs = {self.names[axis]: window(count) for axis, count in self.full.items()}
        self.configs[self.names["slots"]] = concurrency(slots, MINUTE)
        self.told = []
        self.limiter = RateLimiter(self.configs, db=pool, on_decision=self.told.append)
        self.limits = [
            {"name": self.names["slots"], "key": "acme"},
            {"name": self.names["requests"], "key": "ada"},
            {"name": self.names["tokens"], "key": "ada", "count": "tokens"},
            {"name": self.names["usd"], "key": "acme", "count": with_openai.price},
        ]

    def gone(self):
        keys = {limit["name"]: limit["key"] for limit in self.limits}
        left = {axis: self.limiter.check(name, keys[name]).remaining for axis, name in self.names.items()}
        return {axis: self.full[axis] - left[axis] for axis in self.full}

    def budget(self, limiter=None, **options):
        return Budget(limiter or self.limiter, self.limits, output_tokens=500, **options)


@pytest.fixture
def pool():
    with ConnectionPool(min_size=1, max_size=10) as pool:
        yield pool


@pytest.fixture
def server():
    with model() as server:
        yield server


class Chat:
    """The chat completions of OpenAI."""

    @staticmethod
    def calls(client):
        return client.chat.completions

    @staticmethod
    def request(model, id, **others):
        return {"model": model, "messages": HELLO, "hold_id": id, **others}

    text = staticmethod(lambda answer: answer.choices[0].message.content)
    word = staticmethod(lambda chunk: chunk.choices[0].delta.content)


class Response:
    """The responses of OpenAI."""

    @staticmethod
    def calls(client):
        return client.responses

    @staticmethod
    def request(model, id, **others):
        return {"model": model, "input": "hello", "hold_id": id, **others}

    text = staticmethod(lambda answer: answer.output_text)
    word = staticmethod(lambda event: getattr(event, "delta", ""))


class Sync(Chat):
    """Each client has ask and stream: id is that of the hold, and seen is called after each word with all that came."""

    def __init__(self, axes, server, **options):
        self.client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
        self.budgeted = budgeted(self.calls(self.client), axes.budget(**options))

    def ask(self, model="answer", id=None):
        return self.text(self.budgeted.create(**self.request(model, id)))

    def stream(self, model="answer", stop=None, id=None, seen=ignore):
        with self.budgeted.create(**self.request(model, id, stream=True)) as chunks:
            text = ""
            for chunk in chunks:
                text += self.word(chunk)
                seen(text)
                if text == stop:
                    break
        return text

    def at_once(self, calls):
        with ThreadPoolExecutor(25) as threads:
            return list(threads.map(lambda call: caught(call), calls))

    def close(self):
        self.client.close()


class SyncResponses(Response, Sync):
    pass


class Async(Chat):
    """The same with await, behind the same methods."""

    def __init__(self, axes, server, **options):
        self.loop = self.new_loop()

        async def start():
            self.pool = AsyncConnectionPool(min_size=1, max_size=10, open=False)
            await self.pool.open()
            self.client = openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0)
            limiter = AsyncRateLimiter(axes.configs, db=self.pool, on_decision=axes.told.append)
            budget = axes.budget(limiter, **options)
            self.budgeted = budgeted(self.calls(self.client), budget)

        self.loop.run_until_complete(start())

    def new_loop(self):
        return asyncio.new_event_loop()

    async def _ask(self, model="answer", id=None):
        return self.text(await self.budgeted.create(**self.request(model, id)))

    async def _stream(self, model="answer", stop=None, id=None, seen=ignore):
        async with await self.budgeted.create(**self.request(model, id, stream=True)) as chunks:
            text = ""
            async for chunk in chunks:
                text += self.word(chunk)
                seen(text)
                if text == stop:
                    break
        return text

    def ask(self, *arguments, **others):
        return self.loop.run_until_complete(self._ask(*arguments, **others))

    def stream(self, *arguments, **others):
        return self.loop.run_until_complete(self._stream(*arguments, **others))

    def at_once(self, calls):
        async def run():
            mine = [self._ask() if call == self.ask else self._stream() for call in calls]
            return await asyncio.gather(*mine, return_exceptions=True)

        return self.loop.run_until_complete(run())

    def until_logged(self, work):
        return self.loop.run_until_complete(work)

    def close(self):
        async def end():
            await self.client.close()
            await self.pool.close()

        self.loop.run_until_complete(end())


class AsyncResponses(Response, Async):
    pass


class FakeModel(BaseChatModel):
    """A model of LangChain that reports as the server does."""

    what: str = "answer"

    @property
    def _llm_type(self):
        return "fake"

    @property
    def _identifying_params(self):
        return {"max_tokens": 500, "model": self.what}

    def _fails(self):
        if self.what == "refuse":
            error = ValueError("refuse")
            error.status_code = 400
            raise error
        if self.what == "fail":
            raise RuntimeError("fail")

    def _usage(self):
        if self.what == "silent":
            return None
        read, written = (0, 0) if self.what == "total" else (20, 10)
        return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=30)

    def _generate(self, messages, stop=None, run_manager=None, **others):
        self._fails()
        usage = self._usage()
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Paris.", usage_metadata=usage))])

    def _stream(self, messages, stop=None, run_manager=None, **others):
        self._fails()
        for n, word in enumerate(("Par", "is", ".")):
            if n == 2 and self.what == "break":
                error = RuntimeError("break")
                error.status_code = 500
                raise error
            if n == 2 and self.what == "slow":
                RELEASED.wait(60)
            yield ChatGenerationChunk(message=AIMessageChunk(word))
        usage = self._usage()
        yield ChatGenerationChunk(message=AIMessageChunk("", usage_metadata=usage))


class LangChain:
    def __init__(self, axes, server, **options):
        self.callbacks = [BudgetHandler(axes.budget(**options))]

    def config(self, id=None):
        return {"callbacks": self.callbacks, "run_id": id and UUID(id)}

    def ask(self, model="answer"):
        return FakeModel(what=model).invoke("hello", config=self.config()).content

    def stream(self, model="answer", stop=None, id=None, seen=ignore):
        text = ""
        chunks = FakeModel(what=model).stream("hello", config=self.config(id))
        for chunk in chunks:
            text += chunk.content
            seen(text)
            if text == stop:
                chunks.close()
                break
        return text

    def at_once(self, calls):
        with ThreadPoolExecutor(25) as threads:
            return list(threads.map(lambda call: caught(call), calls))

    def close(self):
        pass


async def streamed(config, model, stop, seen):
    """The text of LangChain's asynchronous stream, up to STOP."""
    text = ""
    chunks = FakeModel(what=model).astream("hello", config=config)
    async for chunk in chunks:
        text += chunk.content
        seen(text)
        if text == stop:
            await chunks.aclose()
            break
    return text


class AsyncLangChain(LangChain):
    def ask(self, model="answer"):
        return asyncio.run(FakeModel(what=model).ainvoke("hello", config=self.config())).content

    def stream(self, model="answer", stop=None, id=None, seen=ignore):
        return asyncio.run(streamed(self.config(id), model, stop, seen))


class AwaitedLangChain(Async):
    """LangChain with an asynchronous handler."""

    def __init__(self, axes, server, **options):
        super().__init__(axes, server, **options)
        limiter = AsyncRateLimiter(axes.configs, db=self.pool, on_decision=axes.told.append)
        self.callbacks = [AsyncBudgetHandler(axes.budget(limiter, **options))]

    def config(self, id=None):
        return {"callbacks": self.callbacks, "run_id": id and UUID(id)}

    async def _ask(self, model="answer", id=None):
        return (await FakeModel(what=model).ainvoke("hello", config=self.config(id))).content

    async def _stream(self, model="answer", stop=None, id=None, seen=ignore):
        return await streamed(self.config(id), model, stop, seen)


class LiteLLM(Async):
    """It takes seconds to import, and otherwise asks the network meanwhile."""

    loops = []

    @staticmethod
    def new_loop():
        """One for all, since LiteLLM logs in the first that it meets."""
        if not LiteLLM.loops:
            LiteLLM.loops.append(asyncio.new_event_loop())
        return LiteLLM.loops[0]

    def __init__(self, axes, server, **options):
        super().__init__(axes, server, **options)
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
        import litellm

        from postgres_rate_limit.litellm import BudgetLogger

        self.lite = litellm
        limiter = AsyncRateLimiter(axes.configs, db=self.pool, on_decision=axes.told.append)
        litellm.logging_callback_manager._reset_all_callbacks()  # it keeps one logger of a class
        litellm.callbacks = [BudgetLogger(axes.budget(limiter, **options))]
        self.how = {"api_base": server.url, "api_key": "none", "max_retries": 0}
        self.logged = litellm.callbacks[0]._calls
        self.complete = self.calls_of(litellm)

    def calls_of(self, litellm):
        return partial(litellm.acompletion, num_retries=0, **self.how)

    def request(self, model, id, **others):
        return {"model": f"openai/{model}", "messages": HELLO, **({"litellm_call_id": id} if id else {}), **others}

    async def _ask(self, model="answer", id=None):
        return self.text(await self.complete(**self.request(model, id)))

    async def _stream(self, model="answer", stop=None, id=None, seen=ignore):
        text = ""
        chunks = await self.complete(**self.request(model, id, stream=True))
        async for chunk in chunks:
            text += self.word(chunk) or ""
            seen(text)
            if text == stop:
                break
        return text

    def ask(self, *arguments, **others):
        return self.until_logged(self._ask(*arguments, **others))

    def stream(self, *arguments, **others):
        return self.until_logged(self._stream(*arguments, **others))

    def at_once(self, calls):
        async def run():
            mine = [self._ask() if call == self.ask else self._stream() for call in calls]
            return await asyncio.gather(*mine, return_exceptions=True)

        return self.until_logged(run())

    def until_logged(self, work):
        """LiteLLM logs in the background."""

        async def run():
            try:
                return await work
            finally:
                deadline = time.monotonic() + 30
                while self.logged:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.01)
                settling = [each for each in asyncio.all_tasks() if getattr(each.get_coro(), "__name__", None) == "_settle"]
                await asyncio.gather(*settling, return_exceptions=True)

        return self.loop.run_until_complete(run())

    def close(self):
        self.lite.callbacks = []
        super().close()


class Router(LiteLLM):
    """LiteLLM's choice of a deployment, and its retries: each attempt is a call."""

    def calls_of(self, litellm):
        return self.router([], num_retries=0).acompletion

    def router(self, fallbacks, **options):
        names = [f"openai/{name}" for name in ("answer", "refuse", "fail", "break", "slow", "silent", "total", "azure")]
        models = [{"model_name": name, "litellm_params": {"model": name, **self.how}} for name in names]
        return self.lite.Router(models, fallbacks=fallbacks, retry_after=0, disable_cooldowns=True, **options)


def caught(call):
    try:
        return call()
    except RateLimitExceeded as error:
        return error


CLIENTS = [Sync, Async, SyncResponses, AsyncResponses, LangChain, AsyncLangChain, AwaitedLangChain, LiteLLM, Router]


@pytest.fixture(params=CLIENTS)
def made(request, name, pool, server):
    clients = []

    def make(options={}, **full):
        axes = Axes(name, pool, **full)
        clients.append(request.param(axes, server, **options))
        return axes, clients[-1]

    yield make
    for client in clients:
        client.close()


def test_an_answer_and_a_stream_use_what_is_reported(made, server):
    axes, client = made()
    assert client.ask() == "Paris." and axes.gone() == ONE
    assert client.stream() == "Paris." and axes.gone() == {"slots": 0, "requests": 2, "tokens": 60, "usd": 420}


def test_a_denial_is_an_error_with_the_exact_wait_and_sends_nothing(made, server):
    for axis, full in [("requests", 0.5), ("tokens", 400), ("usd", 5000)]:
        axes, client = made(**{axis: full})
        for call in (client.ask, client.stream):
            with pytest.raises(RateLimitExceeded) as raised:
                call()
            assert raised.value.name == axes.names[axis]
    assert not server.asked
    axes, client = made(tokens=700, requests=1)
    client.ask()
    with pytest.raises(RateLimitExceeded) as raised:
        client.ask()
    wait = axes.limiter.check(axes.names["requests"], "ada").retry_after
    assert raised.value.retry_after == pytest.approx(wait, abs=5) and axes.gone() == ONE


def test_what_is_refused_uses_no_tokens_and_what_fails_has_used_all(made):
    axes, client = made()
    for n, call in enumerate((client.ask, client.stream), 1):
        with pytest.raises(Exception):
            call("refuse")
        assert axes.gone() == {**NONE, "requests": n}
    for n, call in enumerate((client.ask, client.stream), 3):
        with pytest.raises(Exception):
            call("fail")
        gone = axes.gone()
        assert (gone["slots"], gone["requests"]) == (0, n) and gone["tokens"] >= 500 * (n - 2)


def test_what_is_never_sent_gives_all_back(name, pool):
    class Server:
        url = "http://127.0.0.1:9/v1"  # where nothing listens

    axes = Axes(name, pool)
    for make in (Sync, Async):
        client = make(axes, Server)
        for call in (client.ask, client.stream):
            with pytest.raises(openai.APIConnectionError):
                call()
            assert axes.gone() == NONE
        client.close()


def test_a_stream_that_breaks_or_that_the_user_ends_has_used_all(made):
    axes, client = made()
    with pytest.raises(Exception):
        client.stream("break")
    broken = axes.gone()
    assert broken["slots"] == 0 and broken["requests"] == 1 and broken["tokens"] >= 500
    assert client.stream("slow", stop="Par") == "Par"
    assert axes.gone() == {axis: 2 * count for axis, count in broken.items()}


def test_a_call_without_a_report_has_used_all(made):
    axes, client = made()
    calls = [partial(client.ask, "silent"), partial(client.ask, "total")]
    if not isinstance(client, LiteLLM):  # it counts the tokens of a stream itself
        calls += [partial(client.stream, "silent"), partial(client.stream, "total")]
    for n, call in enumerate(calls, 1):
        assert call() == "Paris."
        gone = axes.gone()
        assert (gone["slots"], gone["requests"]) == (0, n) and gone["tokens"] >= 500 * n, call


def test_an_answer_is_returned_though_the_database_can_not_settle(made, monkeypatch):
    told = []
    axes, client = made({"on_unsettled": told.append})

    def fail(*_):
        raise ConnectionResetError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(Calls, "settle_all", fail)
        assert client.ask() == client.stream() == "Paris."
        gone = axes.gone()
    assert [repr(each.error) for each in told] == ["ConnectionResetError('gone')"] * 2
    assert gone["slots"] == gone["requests"] == 2
    for each in told:
        axes.limiter.settle_all(each.hold, each.used)
    assert axes.gone() == {"slots": 0, "requests": 2, "tokens": 60, "usd": 420}


@pytest.mark.parametrize("made", [Sync, Async, LangChain, LiteLLM], indirect=True)
def test_a_count_that_is_no_number_settles_all_that_was_held(made):
    told = []
    axes, client = made({"on_unsettled": told.append})
    for n, wrong in enumerate((float("nan"), "12", -1), 1):
        axes.limits[3]["count"] = lambda usage, wrong=wrong: 210 if usage.output_tokens == 500 else wrong
        assert client.ask() == "Paris."
        gone = axes.gone()
        assert (gone["slots"], gone["requests"], gone["usd"]) == (0, n, n * 210) and gone["tokens"] >= n * 500
        assert repr(wrong) in str(told[-1].error) and told[-1].used is None and told[-1].hold


def test_what_prices_see_of_a_report():
    openai_chat = {
        "prompt_tokens": 20,
        "completion_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 16},
        "completion_tokens_details": {"reasoning_tokens": 7},
        "cost": 0.25,
    }
    openai_responses = ResponseUsage(
        input_tokens=20,
        input_tokens_details={"cached_tokens": 16, "cache_write_tokens": 0},
        output_tokens=10,
        output_tokens_details={"reasoning_tokens": 7},
        total_tokens=30,
        cost=0.25,
    )
    langchain = {
        "input_tokens": 20,
        "output_tokens": 10,
        "input_token_details": {"cache_read": 16},
        "output_token_details": {"reasoning": 7},
        "cost": 0.25,
    }
    for report in (openai_chat, CompletionUsage(**openai_chat, total_tokens=30), openai_responses, langchain):
        assert read_usage([report], "gpt") == Usage(20, 10, "gpt", 16, 7, 0.25, report)
    assert read_usage([{"prompt_tokens": 20, "completion_tokens": 10}]).cost is None
    for nothing in ({}, {"total_tokens": 30}, {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": 3}, None):
        assert read_usage([nothing]) is None


@pytest.mark.parametrize("made", [Sync, Async], indirect=True)
def test_a_stream_without_usage_where_the_caller_wants_none(made, server):
    axes, client = made()

    async def run():
        chunks = await client.budgeted.create(**request)
        return [chunk async for chunk in chunks]

    def chunks():
        return (
            list(client.budgeted.create(**request)) if type(client) is Sync else client.loop.run_until_complete(run())
        )

    request = client.request("answer", None, stream=True, stream_options={"include_usage": False})
    assert len(chunks()) == 3 and server.asked[-1]["stream_options"] == {"include_usage": False}
    assert axes.gone()["tokens"] >= 500
    request = client.request("azure", None, stream=True)
    assert [len(chunk.choices) for chunk in chunks()] == [0, 1, 1, 1]


@pytest.mark.parametrize("made", [LiteLLM, Router], indirect=True)
def test_a_stream_of_litellm_without_usage_where_the_caller_wants_none(made, server):
    told = []
    axes, client = made({"unreported": lambda call: told.append(call)})

    async def run(model, **options):
        chunks = await client.complete(**client.request(model, None, stream=True, **options))
        return [chunk async for chunk in chunks]

    chunks = client.until_logged(run("answer", stream_options={"include_usage": False}))
    assert "".join(client.word(chunk) or "" for chunk in chunks) == "Paris."
    assert not (server.asked[-1].get("stream_options") or {}).get("include_usage")
    assert axes.gone()["slots"] == 0 and axes.gone()["tokens"] >= 500
    assert (told[0].streamed.output_tokens, told[0].error) == (2, None)
    # Azure's first chunk has no choices, and passes as LiteLLM makes it.
    plain, client.lite.callbacks = client.lite.callbacks, []
    without = client.loop.run_until_complete(run("azure", stream_options={"include_usage": True}))
    client.lite.callbacks = plain
    assert len(client.until_logged(run("azure"))) == len(without)


def test_one_limit_with_two_counts_and_a_list_of_no_limits(name, pool):
    limiter = RateLimiter({name: window(10)}, db=pool)
    twice = [{"name": name, "key": "acme"}, {"name": name, "key": "ada", "count": "tokens"}]
    with pytest.raises(TypeError, match=f"the limit \"{name}\" comes twice, with the counts 1 and 'tokens'; allowed"):
        Budget(limiter, twice).call({"messages": HELLO})
    Budget(limiter, [{"name": name, "key": key} for key in ("acme", "ada")]).call({"messages": HELLO})
    budget = Budget(limiter, lambda request: [])
    with budget.hold(budget.call({"messages": HELLO})) as hold:  # no limit: an exempt caller
        assert hold.ok and hold.id is None
    assert limiter.hold_all([]).ok


def test_a_tool_loop_of_ten_calls(made):
    axes, client = made(slots=1)
    for _ in range(5):
        client.ask()
        client.stream()
    assert axes.gone() == {"slots": 0, "requests": 10, "tokens": 300, "usd": 2100}


def test_50_calls_at_once_never_exceed_a_limit(made):
    axes, client = made(tokens=5 * 600, requests=1000)
    answers = client.at_once([client.ask, client.stream] * 25)
    passed = [each for each in answers if each == "Paris."]
    denied = [each for each in answers if isinstance(each, RateLimitExceeded)]
    assert len(passed) + len(denied) == 50 and len(passed) >= 5
    count = len(passed)
    assert axes.gone() == {"slots": 0, "requests": count, "tokens": 30 * count, "usd": 210 * count}
    assert 30 * count <= 5 * 600


def test_a_stream_extends_its_hold(made, server, monkeypatch):
    axes, client = made({"ttl": 0.6})
    extension, extended = HoldAll._extension, []
    counted = lambda hold, more: extended.append(more) or extension(hold, more)  # noqa: E731
    for holds in (HoldAll, AsyncHoldAll):
        monkeypatch.setattr(holds, "_extension", counted)
    threading.Timer(0.7, RELEASED.set).start()
    assert client.stream("slow") == "Paris." and axes.gone() == ONE
    assert extended and len(axes.told) == len(ONE), "held on, of which on_decision does not hear"


STREAMS = [Sync, Async, SyncResponses, AsyncResponses, LangChain, AsyncLangChain, AwaitedLangChain]


@pytest.mark.parametrize("made", STREAMS, indirect=True)
def test_a_stream_goes_on_if_its_hold_can_not_be_extended(made, monkeypatch, caplog):
    axes, client = made()
    monkeypatch.setattr(ModelCall, "is_due", lambda call: True)
    hold = client.callbacks[0]._budget if hasattr(client, "callbacks") else client.budgeted._budget
    again = hold.limiter._calls.hold_all

    def only_once(requests, ttl, id, on_expiry):
        if id is not None and id in held:
            raise ConnectionResetError("gone")
        held.append(id)
        return again(requests, ttl, id, on_expiry)

    held = []
    monkeypatch.setattr(hold.limiter._calls, "hold_all", only_once)
    monkeypatch.setattr(type(hold.limiter), "hold_all", with_id(type(hold.limiter).hold_all))
    assert client.stream() == "Paris." and axes.gone() == ONE
    assert "a hold was not extended: ConnectionResetError('gone')" in caplog.text


def with_id(hold_all):
    own = str(uuid4())  # tests share a database
    return lambda limiter, *arguments, id, **others: hold_all(limiter, *arguments, id=id or own, **others)


def test_a_count_that_fails_on_the_report_settles_all_that_was_held(made, caplog):
    axes, client = made()

    def price(usage):
        return {500: 210}[usage.output_tokens]

    axes.limits[3]["count"] = price
    for n, call in enumerate((client.ask, client.stream), 1):
        assert call() == "Paris."
        gone = axes.gone()
        assert (gone["slots"], gone["requests"], gone["usd"]) == (0, n, n * 210) and gone["tokens"] >= n * 500
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("made", [LangChain, AsyncLangChain, AwaitedLangChain], indirect=True)
def test_what_a_cache_answers_uses_nothing(made):
    axes, client = made()
    for model in (FakeModel(cache=InMemoryCache()), FakeListChatModel(responses=["Paris."] * 2, cache=InMemoryCache())):
        gone = []
        for _ in range(2):
            if isinstance(client, AwaitedLangChain):
                answer = client.loop.run_until_complete(model.ainvoke("hello", config=client.config()))
            elif isinstance(client, AsyncLangChain):
                answer = asyncio.run(model.ainvoke("hello", config=client.config()))
            else:
                answer = model.invoke("hello", config=client.config())
            assert answer.content == "Paris."
            gone.append(axes.gone())
        assert gone[0] == gone[1] != NONE and gone[0]["slots"] == 0
    assert not client.callbacks[0]._runs


@pytest.mark.parametrize("made", [LangChain], indirect=True)
def test_runs_whose_end_langchain_does_not_report_are_forgotten(made, monkeypatch):
    axes, client = made(slots=2)
    runs = client.callbacks[0]._runs
    with pytest.raises(RateLimitExceeded):
        FakeModel().generate([[AIMessage(text)] for text in "abc"], callbacks=client.callbacks)
    assert len(runs) == 2
    for run in runs:
        axes.limiter.settle_all(str(run))
    assert client.ask() == "Paris." and len(runs) == 2
    monkeypatch.setattr(budgets, "_DAY", -3600)
    assert client.ask() == "Paris." and len(runs) == 0


def test_an_error_is_a_refusal_only_by_its_status_and_before_an_answer(name):
    class Raised(Exception):
        status_code = 200

    call = Budget(RateLimiter({}), [{"name": name, "count": "tokens"}]).call({"messages": HELLO})
    assert call.ended(Raised()) is None
    Raised.status_code = 500
    assert call.ended(Raised()) == {name: 0}
    Raised.status_code = 408
    assert call.ended(Raised()) is None
    Raised.status_code = 500
    call.came("Par")
    assert call.ended(Raised()) is None
    call.reported({"prompt_tokens": 1, "completion_tokens": 2})
    assert call.ended(Raised()) == {name: 3}


# What counts as used without a report.


def test_what_has_streamed_is_what_counts_where_the_application_says_so(made):
    told = []

    def streamed(call):
        told.append(call)
        return call.streamed if call.streamed.output_tokens else None

    axes, client = made({"unreported": streamed})
    prompt = estimate_input({"messages": HELLO})
    knows = not isinstance(client, LiteLLM)  # which reports no chunks
    assert client.stream("slow", stop="Par") == "Par"
    used = prompt + (1 if knows else 500)
    assert axes.gone() == {"slots": 0, "requests": 1, "tokens": used, "usd": 3 * prompt + 15 * (used - prompt)}
    assert type(told[-1].error).__name__ in ("GeneratorExit", "CancelledError")
    with pytest.raises(Exception):
        client.stream("break")
    used += prompt + (2 if knows else 500)
    assert axes.gone()["tokens"] == used and told[-1].error is not None
    assert client.ask("silent") == "Paris."
    used += prompt + 2
    assert axes.gone()["tokens"] == used and told[-1].error is None and told[-1].held.output_tokens == 500
    if knows:  # otherwise LiteLLM counts
        assert client.stream("silent") == "Paris."
        used += prompt + 2
    assert axes.gone()["tokens"] == used and len(told) == 3 + knows
    # What is reported, refused or never sent isn't asked for.
    assert client.ask() == "Paris."
    with pytest.raises(Exception):
        client.ask("refuse")
    assert axes.gone()["tokens"] == used + 30 and len(told) == 3 + knows


@pytest.mark.parametrize("made", [Sync, Async, LangChain, LiteLLM], indirect=True)
def test_an_unreported_that_fails_settles_all_that_was_held(made):
    told = []
    axes, client = made({"unreported": lambda call: 1 / 0, "on_unsettled": told.append})
    assert client.ask("silent") == "Paris."
    assert axes.gone()["slots"] == 0 and axes.gone()["tokens"] >= 500
    assert isinstance(told[0].error, ZeroDivisionError) and told[0].used is None
    axes, client = made({"unreported": lambda call: Usage(-1, 0), "on_unsettled": told.append})
    assert client.ask("silent") == "Paris."
    assert axes.gone()["tokens"] >= 500 and "is -1" in str(told[1].error)


@pytest.mark.parametrize("made", [Sync, SyncResponses], indirect=True)
def test_a_maximum_that_is_not_given(made):
    axes, client = made()
    for nothing in (openai.NOT_GIVEN, openai.omit, None):
        field = "max_tokens" if type(client) is Sync else "max_output_tokens"
        assert client.text(client.budgeted.create(**client.request("answer", None, **{field: nothing}))) == "Paris."
    assert axes.gone()["requests"] == 3


# What the estimate counts, by the table of docs/llm-budgets.md, in the shapes of each provider.

PHOTO = "iVBOR" * 266_000
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "where"}}}
ARGUMENTS = {"city": "Zürich"}


def text(of):
    """The tokens of a text, or of the text of its JSON."""
    return -(
        -len((of if isinstance(of, str) else json.dumps(of, ensure_ascii=False, separators=(",", ":"))).encode()) // 3
    )


def asked(*content, **others):
    return {"messages": [{"role": "user", "content": list(content), **others}]}


def given(*content):
    return {"input": [{"role": "user", "content": list(content)}]}


PICTURES = {
    "OpenAI, a URL": asked({"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "high"}}),
    "OpenAI, a data URL": asked({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PHOTO}"}}),
    "OpenAI, responses": given({"type": "input_image", "image_url": f"data:image/png;base64,{PHOTO}"}),
    "OpenAI, responses, an id": given({"type": "input_image", "file_id": "file-1", "detail": "low"}),
    "OpenAI, one that was made": {
        "input": [{"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PHOTO}]
    },
    "OpenAI, of a tool": {
        "input": [
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": PHOTO}]}
        ]
    },
    "OpenAI, of a computer": {
        "input": [
            {
                "type": "computer_call_output",
                "call_id": "c",
                "output": {"type": "computer_screenshot", "image_url": PHOTO},
            }
        ]
    },
    "Anthropic, base64": asked(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PHOTO}}
    ),
    "Anthropic, a URL": asked({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}),
    "Anthropic, of a tool": asked(
        {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PHOTO}}],
        }
    ),
    "LangChain, base64": asked({"type": "image", "base64": PHOTO, "mime_type": "image/png"}),
    "LangChain, bytes": asked({"type": "image", "data": PHOTO.encode(), "mime_type": "image/png"}),
    "LangChain, earlier": asked({"type": "image", "source_type": "base64", "data": PHOTO, "mime_type": "image/png"}),
    "LangChain, Google": asked({"type": "media", "mime_type": "image/png", "data": PHOTO}),
    "a file of a picture": asked({"type": "file", "mime_type": "image/png", "base64": PHOTO}),
}
FILES = {
    "OpenAI, PDF": asked(
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PHOTO}"}}
    ),
    "OpenAI, responses": given({"type": "input_file", "filename": "a.pdf", "file_data": PHOTO}),
    "OpenAI, an id": given({"type": "input_file", "file_id": "file-1"}),
    "OpenAI, audio": asked({"type": "input_audio", "input_audio": {"data": PHOTO, "format": "wav"}}),
    "OpenAI, audio of an answer": {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]},
    "Anthropic, PDF": asked(
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PHOTO}}
    ),
    "Anthropic, a URL": asked({"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}),
    "Anthropic, of a tool": asked(
        {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
            "content": [
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PHOTO}}
            ],
        }
    ),
    "LangChain, PDF": asked({"type": "file", "base64": PHOTO, "mime_type": "application/pdf"}),
    "LangChain, audio": asked({"type": "audio", "base64": PHOTO, "mime_type": "audio/wav"}),
    "LangChain, video": asked({"type": "video", "url": "https://example.com/a.mp4"}),
    "LiteLLM, video": asked({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}),
}
HOURS = "Zürich — 8 bis 12"
NAMED = {"name": "weather", "description": "the weather", "parameters": SCHEMA}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}}
FORMAT = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
TEXTS = {
    "OpenAI": (
        {"messages": [{"role": "system", "content": "be brief"}, *asked(HOURS)["messages"]]},
        text("be brief") + text(HOURS),
    ),
    "OpenAI, parts": (asked({"type": "text", "text": HOURS}, {"type": "text", "text": "a"}), text(HOURS) + 1),
    "OpenAI, responses": ({"instructions": "be brief", "input": HOURS}, text("be brief") + text(HOURS)),
    "OpenAI, responses, parts": (given({"type": "input_text", "text": HOURS}), text(HOURS)),
    "OpenAI, a prompt": ({"prompt": {"id": "pmpt_1", "variables": {"place": HOURS}}}, text(HOURS)),
    "Anthropic": (
        {"system": [{"type": "text", "text": "be brief"}], **asked({"type": "text", "text": HOURS})},
        text("be brief") + text(HOURS),
    ),
    "Anthropic, a text as a file": (
        asked({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": HOURS}}),
        text(HOURS),
    ),
    "LangChain, a text as a file": (asked({"type": "file", "source_type": "text", "text": HOURS}), text(HOURS)),
    "a prompt": ({"prompt": HOURS}, text(HOURS)),
    "arguments, OpenAI": (
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]},
        text("weather") + text(json.dumps(ARGUMENTS)),
    ),
    "arguments, OpenAI, earlier": (
        {"messages": [{"role": "assistant", "function_call": CALL["function"]}]},
        text("weather") + text(json.dumps(ARGUMENTS)),
    ),
    "arguments, OpenAI, responses": (
        {"input": [{"type": "function_call", "call_id": "c", "name": "weather", "arguments": json.dumps(ARGUMENTS)}]},
        text("weather") + text(json.dumps(ARGUMENTS)),
    ),
    "arguments, Anthropic": (
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": ARGUMENTS}],
                }
            ]
        },
        text("weather") + text(ARGUMENTS),
    ),
    "results, OpenAI": ({"messages": [{"role": "tool", "tool_call_id": "call_1", "content": HOURS}]}, text(HOURS)),
    "results, OpenAI, responses": (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": HOURS}]},
        text(HOURS),
    ),
    "results, Anthropic": (asked({"type": "tool_result", "tool_use_id": "t", "content": HOURS}), text(HOURS)),
    "results, Anthropic, parts": (
        asked({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": HOURS}]}),
        text(HOURS),
    ),
    "tools, OpenAI": (
        {"tools": [{"type": "function", "function": NAMED}] * 2},
        2 * text({"type": "function", "function": NAMED}),
    ),
    "tools, OpenAI, responses": ({"tools": [{"type": "function", **NAMED}]}, text({"type": "function", **NAMED})),
    "tools, Anthropic": (
        {"tools": [{"name": "weather", "description": "the weather", "input_schema": SCHEMA}]},
        text({"name": "weather", "description": "the weather", "input_schema": SCHEMA}),
    ),
    "functions": ({"functions": [NAMED]}, text(NAMED)),
    "a schema, OpenAI": (
        {"response_format": {"type": "json_schema", "json_schema": FORMAT}},
        text({"type": "json_schema", "json_schema": FORMAT}),
    ),
    "a schema, OpenAI, responses": ({"text": {"format": FORMAT, "verbosity": "low"}}, text(FORMAT)),
    "a schema, Anthropic": ({"output_config": {"format": FORMAT}}, text({"format": FORMAT})),
    "nothing": (
        {
            "model": "answer",
            "tools": openai.NOT_GIVEN,
            "instructions": openai.omit,
            "text": openai.omit,
            "functions": None,
        },
        0,
    ),
}


@pytest.mark.parametrize("request_", PICTURES.values(), ids=PICTURES)
def test_a_picture_is_1600_tokens_whatever_its_size(request_):
    assert estimate_input(request_) == 1600


@pytest.mark.parametrize("request_", FILES.values(), ids=FILES)
def test_another_file_is_5000_tokens(request_):
    assert estimate_input(request_) == 5000


@pytest.mark.parametrize("request_, tokens", TEXTS.values(), ids=TEXTS)
def test_a_text_is_a_third_of_its_bytes(request_, tokens):
    assert estimate_input(request_) == tokens


def test_what_a_client_answered_and_what_pydantic_makes_count_likewise():
    message = ChatCompletionMessage(role="assistant", tool_calls=[CALL])
    called = ResponseFunctionToolCall(
        type="function_call", call_id="c", name="weather", arguments=json.dumps(ARGUMENTS)
    )
    tokens = text("weather") + text(json.dumps(ARGUMENTS))
    assert estimate_input({"messages": [message]}) == estimate_input({"input": [called]}) == tokens

    class City(BaseModel):
        name: str

    assert estimate_input({"response_format": City}) == text(City.model_json_schema())


def test_messages_of_langchain_count_with_their_calls_and_results(name, pool):
    used = []

    def limits(request):
        used.append(estimate_input(request))
        return []

    handler = BudgetHandler(Budget(RateLimiter({}, db=pool), limits))
    call = {"name": "weather", "args": ARGUMENTS, "id": "call_1"}
    photo = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PHOTO}"}}
    block = {"type": "tool_use", "id": "call_1", "name": "weather", "input": ARGUMENTS}
    tokens = text("weather") + text(ARGUMENTS)
    for messages, expected in (
        ([HumanMessage(HOURS)], text(HOURS)),
        ([HumanMessage([{"type": "text", "text": HOURS}, photo])], text(HOURS) + 1600),
        ([AIMessage("", tool_calls=[call])], tokens),
        ([AIMessage([block], tool_calls=[call])], tokens),
        (
            [AIMessage("", additional_kwargs={"function_call": CALL["function"]})],
            text("weather") + text(json.dumps(ARGUMENTS)),
        ),
        ([ToolMessage([photo, {"type": "text", "text": HOURS}], tool_call_id="call_1")], text(HOURS) + 1600),
    ):
        FakeModel().invoke(messages, config={"callbacks": [handler]})
        assert used.pop() == expected, messages
    tool = {"type": "function", "function": NAMED}
    FakeModel().bind(tools=[tool]).invoke("", config={"callbacks": [handler]})
    assert used.pop() == text(tool)


def test_what_may_come_is_the_maximum_and_the_thoughts_beyond_it():
    budget = Budget(RateLimiter({}), [], output_tokens=700)
    thinking = {"type": "enabled", "budget_tokens": 4000}
    for request, tokens in (
        ({}, 700),
        ({"max_tokens": 500}, 500),
        ({"max_completion_tokens": 500}, 500),
        ({"max_output_tokens": 500, "n": 2}, 1000),
        ({"max_tokens": 6000, "thinking": thinking}, 6000),
        ({"max_tokens": 500, "thinking": thinking}, 4500),
        ({"thinking": thinking}, 4700),
        ({"max_tokens": 500, "thinking": {"type": "disabled"}}, 500),
        ({"max_tokens": 500, "thinking": None}, 500),
    ):
        assert budget.call(request).estimate.output_tokens == tokens, request


@pytest.mark.parametrize("made", [Router], indirect=True)
def test_each_attempt_of_a_router_is_a_call(made, server):
    axes, client = made()
    client.complete = client.router([{"openai/fail": ["openai/answer"]}], num_retries=1).acompletion
    for n, call in enumerate((client.ask, client.stream), 1):
        assert call("fail") == "Paris."
        gone = axes.gone()
        assert (gone["slots"], gone["requests"]) == (0, 3 * n) and gone["tokens"] >= n * (2 * 500 + 30)
    assert [asked["model"] for asked in server.asked] == ["fail", "fail", "answer"] * 2


@pytest.mark.parametrize("made", [Async, AsyncResponses, LiteLLM, Router], indirect=True)
def test_a_call_that_is_cancelled_has_used_all(made, server):
    axes, client = made()

    async def cancel():
        call = asyncio.ensure_future(client._ask("slow"))
        while not server.asked:
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
        return call.cancelled()

    assert client.until_logged(cancel()) and axes.gone()["slots"] == 0
    assert axes.gone()["requests"] == 1 and axes.gone()["tokens"] >= 500


def test_a_retry_with_the_same_id_holds_nothing_twice(made, name):
    axes, client = made()
    id = str(UUID(name))
    budget = axes.budget()
    budget.hold(budget.call({"max_tokens": 5000}), id)  # its process died before it settled
    before = axes.gone()
    during = []

    def seen(text):
        if text == "Par":
            during.append(axes.gone())
            RELEASED.set()

    assert client.stream("slow", id=id, seen=seen) == "Paris."
    assert during == [before] and axes.gone() == ONE


@pytest.mark.parametrize("kind", [Sync, Async, LangChain, LiteLLM])
def test_a_process_that_dies_in_mid_stream_gives_all_back(kind, name, pool, server):
    axes = Axes(name, pool)
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_budgets
from psycopg_pool import ConnectionPool
class Server: url = {server.url!r}
with ConnectionPool(min_size=1) as pool:
    client = test_budgets.{kind.__name__}(test_budgets.Axes({name!r}, pool), Server, ttl=1)
    client.stream("slow", seen=lambda text: print("saw", text, flush=True))
"""
    dies = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=dict(os.environ))
    assert any(line == b"saw Par\n" for line in dies.stdout)
    dies.kill()
    dies.communicate()
    deadline = time.monotonic() + 60
    while axes.gone() != NONE:
        assert time.monotonic() < deadline


# LangChain's rate limiter.


def test_a_rate_limiter_waits_until_a_request_may_be_sent(name, pool):
    limiter = RateLimiter({name: token_bucket(2, MINUTE / 60, capacity=1)}, db=pool)  # two a second
    requests = RequestLimiter(limiter, name, "ada")
    fake = GenericFakeChatModel(messages=iter([AIMessage(text) for text in "abc"]), rate_limiter=requests)
    began = time.monotonic()
    assert [fake.invoke("hello").content for _ in range(2)] == ["a", "b"]
    assert time.monotonic() - began >= 0.4 and requests.acquire() and not requests.acquire(blocking=False)
    with pytest.raises(RateLimitExceeded):
        RequestLimiter(limiter, name, count=2).acquire()


async def test_a_rate_limiter_with_await(name, pool):
    configs = {name: token_bucket(2, MINUTE / 60, capacity=1)}
    async with AsyncConnectionPool(min_size=1, open=False) as own:
        for limiter in (AsyncRateLimiter(configs, db=own), RateLimiter(configs, db=pool)):
            requests = RequestLimiter(limiter, name, "ada")
            assert await requests.aacquire() and await requests.aacquire()
            assert not await requests.aacquire(blocking=False)
            with pytest.raises(RateLimitExceeded):
                await RequestLimiter(limiter, name, count=2).aacquire()
        with pytest.raises(TypeError, match="the limiter is an AsyncRateLimiter"):
            RequestLimiter(AsyncRateLimiter(configs, db=own), name).acquire()


def test_a_wait_that_is_cancelled_takes_no_token_later(name, pool):
    answers = []
    limiter = RateLimiter({name: token_bucket(1, MINUTE / 6)}, db=pool, on_decision=answers.append)
    limiter.limit(name)

    async def cancel():
        waits = asyncio.create_task(RequestLimiter(limiter, name).aacquire())
        while len(answers) < 2:
            await asyncio.sleep(0.01)
        waits.cancel()
        await asyncio.wait([waits])

    asyncio.run(cancel())  # which waits for its threads
    assert [answer.ok for answer in answers] == [True, False]


# A budget that waits.


@pytest.mark.parametrize("made", [Sync, Async, LangChain, AwaitedLangChain, LiteLLM], indirect=True)
def test_a_budget_that_waits_holds_nothing_meanwhile(made):
    axes, client = made({"wait": 60}, requests=2)
    assert client.ask() == "Paris."
    axes.limiter.hold(axes.names["requests"], "ada", ttl=1)
    axes.told.clear()
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(client.stream)
        while not any(told.ok is False for told in axes.told):
            time.sleep(0.005)
        meanwhile = axes.gone()
        assert waits.result() == "Paris."
    assert meanwhile["tokens"] == 30 and meanwhile["slots"] == 0
    assert axes.gone()["tokens"] == 60


@pytest.mark.parametrize("made", [Async, AwaitedLangChain], indirect=True)
def test_a_wait_of_a_budget_that_is_cancelled_holds_nothing_later(made):
    axes, client = made({"wait": 60}, requests=1)
    axes.limiter.hold(axes.names["requests"], "ada", ttl=1)
    axes.told.clear()

    async def cancel():
        waits = asyncio.ensure_future(client._ask())
        while not axes.told:
            await asyncio.sleep(0.005)
        waits.cancel()
        await asyncio.wait([waits])
        return waits.cancelled()

    assert client.loop.run_until_complete(cancel())
    time.sleep(1.2)
    assert axes.gone() == NONE


def test_an_asynchronous_handler_refuses_synchronous_calls():
    handler = AsyncBudgetHandler(Budget(AsyncRateLimiter({}), []))
    for call in (
        lambda: FakeModel().invoke("hello", config={"callbacks": [handler]}),
        lambda: list(FakeModel().stream("a", config={"callbacks": [handler]})),
    ):
        with pytest.raises(TypeError, match="allowed for synchronous calls: a BudgetHandler"):
            call()


# The examples of docs/llm-budgets.md.


def test_the_examples(name, server, monkeypatch):
    client = openai.OpenAI(base_url=server.url, api_key="none")
    held = Usage(20, 500)
    assert with_openai.unreported(Unreported(held, Usage(20, 3), GeneratorExit())) == Usage(20, 3)
    assert with_openai.unreported(Unreported(held, Usage(20, 0), None)) is None
    with with_openai.pool:
        limiter = with_openai.limiter
        before = limiter.check("microUsd", name).remaining
        assert with_openai.answer(client, name, f"ada {name}", "hello") == "Paris."
        assert before - limiter.check("microUsd", name).remaining == 210
        assert limiter.check("generations", name).remaining == 5
        with monkeypatch.context() as patched:
            patched.setattr(Calls, "settle_all", lambda *_: 1 / 0)
            assert with_openai.answer(client, name, f"ada {name}", "hello") == "Paris."
            with pytest.raises(ZeroDivisionError):
                with_openai.settle_again()
        assert limiter.check("generations", name).remaining == 4
        with_openai.settle_again()
        assert before - limiter.check("microUsd", name).remaining == 420 and with_openai.unsettled.empty()
        assert limiter.check("generations", name).remaining == 5
    client.close()
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm
    from examples import with_litellm

    with ConnectionPool() as pool:
        left = RateLimiter({"microUsd": with_litellm.MONTHLY}, db=pool)

        async def ask():
            async with AsyncConnectionPool(open=False) as own:
                litellm.logging_callback_manager._reset_all_callbacks()
                litellm.callbacks = [with_litellm.logger(own)]
                how = {"api_base": server.url, "api_key": "none", "user": f"globex {name}"}
                await litellm.acompletion(model="openai/answer", messages=HELLO, **how)

        LiteLLM.new_loop().run_until_complete(ask())
        litellm.callbacks = []
        assert left.check("microUsd", f"globex {name}").remaining == 50_000_000 - 210
    with with_langchain.pool:
        assert with_langchain.answer(FakeModel(), name, f"bob {name}", "hello") == "Paris."
        assert with_langchain.limiter.check("llmTokens", f"bob {name}").remaining == 999_970
        assert with_langchain.limiter.check("requests", name).remaining < 100
