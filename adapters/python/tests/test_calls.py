"""Both clients are as adapters/calls.json says, which is also that for Node: their calls, options and results, and what
the cases are answered."""

import asyncio
import dataclasses
import inspect
import json
import time
from datetime import timedelta
from math import floor
from pathlib import Path

import postgres_rate_limit
import psycopg
import pytest
import sqlalchemy as sa
from databases import ASYNC_ALONE
from sqlalchemy.ext.asyncio import create_async_engine

from postgres_rate_limit import AsyncRateLimiter, RateLimiter, RateLimitExceeded
from postgres_rate_limit._denials import Remembering

TABLE = json.loads(
    next(path for up in Path(__file__).parents if (path := up / "adapters/calls.json").is_file()).read_text()
)
CALLS, RESULTS = TABLE["calls"], TABLE["results"]
CLIENTS = [RateLimiter, AsyncRateLimiter]


def public(of):
    return {name for name in dir(of) if not name.startswith("_")}


def options_of(call):
    """Those that are not positional, and their defaults; a span is seconds."""
    found = inspect.signature(call).parameters.values()
    defaults = {each.name: each.default for each in found if each.name != "self"}
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in defaults.items()
    }


@pytest.mark.parametrize("client", CLIENTS)
def test_the_calls_and_options_are_those_of_the_table(client):
    only = TABLE["only"]["python"]
    assert public(client) == {*CALLS, *only["limiter"]}
    limiter = options_of(client.__init__)
    # Where calls block, none comes while a statement is under way.
    batch = {"batch": True} if client is AsyncRateLimiter else {}
    known = {option: default for option, default in TABLE["options"]["limiter"].items() if option != "batch"}
    assert limiter.pop("limits") is inspect.Parameter.empty and limiter == {**known, **batch}
    for name, call in CALLS.items():
        found = options_of(getattr(client, name))
        assert [each for each in found if each in call["given"]] == call["given"], name
        options = {each: default for each, default in found.items() if each not in call["given"]}
        assert options == call["options"], name


def test_what_is_remembered_is_in_the_table():
    assert set(Remembering.__annotations__) == set(TABLE["options"]["remember_denials"])


def of_client(name, client):
    """The class of a result, which has a name of its own where its calls are awaited."""
    awaited = client is AsyncRateLimiter and "calls" in RESULTS[name]
    return getattr(postgres_rate_limit, f"Async{name}" if awaited else name)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", [name for name in RESULTS if "calls" in RESULTS[name]])
def test_the_calls_of_results_are_those_of_the_table(name, client):
    found, calls = of_client(name, client), RESULTS[name]["calls"]
    fields = RESULTS[name]["fields"]
    assert {each for each in public(found) if callable(getattr(found, each))} == set(calls)
    assert public(found) <= {*calls, *fields}
    for call, given in calls.items():
        names = list(options_of(getattr(found, call)))
        others = [each.split(".")[1] for each in TABLE["only"]["python"]["options"] if each.split(".")[0] == call]
        assert names == given + [each for each in others if name != "Borrowed"], call


@pytest.mark.parametrize("name", [name for name in RESULTS if "calls" not in RESULTS[name]])
def test_the_fields_of_results_are_those_of_the_table(name):
    found = getattr(postgres_rate_limit, name)
    if name == "Value":
        fields = set(found.__annotations__)
    else:
        fields = public(found) | {each.name for each in dataclasses.fields(found)}
    assert fields == set(RESULTS[name]["fields"])


# The cases.


@pytest.fixture
def awaiting():
    """Runs what is awaited, in a loop that lasts."""
    loop = asyncio.new_event_loop()
    yield lambda made: loop.run_until_complete(made) if inspect.isawaitable(made) else made
    loop.close()


@pytest.fixture
def made_of(awaiting):
    """Makes a client of either kind: on the tests' database, or where no server answers."""
    entered, engines = [], []

    def make(client, nowhere, **options):
        if client is RateLimiter:
            if nowhere:
                db = sa.create_engine("postgresql+psycopg://?host=/nowhere")
                engines.append(db)
            else:
                db = psycopg.connect(autocommit=True)
                entered.append(db)
        elif nowhere:
            db = create_async_engine("postgresql+asyncpg://?host=/nowhere")
        else:
            context = ASYNC_ALONE["psycopg AsyncConnectionPool"]()
            db = awaiting(context.__aenter__())
            entered.append(context)
        return client(TABLE["limits"], db=db, **options)

    yield make
    for each in entered:
        each.close() if isinstance(each, psycopg.Connection) else awaiting(each.__aexit__(None, None, None))


def compare(found, expected, at):
    """What is found is what is expected: "some", "any", or the same; of an object what is named, of headers all."""
    if expected == "any":
        return
    if expected == "some":
        assert found is not None, at
    elif isinstance(expected, list):
        assert len(found) == len(expected), at
        for n, each in enumerate(expected):
            compare(found[n], each, f"{at}[{n}]")
    elif isinstance(expected, dict):
        if at.endswith("headers"):
            assert set(found) == set(expected), at
        for name, each in expected.items():
            compare(found[name] if isinstance(found, dict) else getattr(found, name), each, f"{at}.{name}")
    else:
        is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
        assert (floor(found) if is_number else found) == expected, at


class Mine(Exception):
    """What a block raises."""


def block(limiter, step, given, options, awaiting):
    since = time.monotonic()
    entered = getattr(limiter, step["block"])(*given, **options)

    def work(held):
        waits = [each.retry_after or 0 for each in (held, *getattr(held, "results", ()))]
        assert time.monotonic() - since >= max(waits), "it began too early"
        for name, value in step.get("sets", {}).items():
            setattr(held, name, value)
        if step.get("fails"):
            raise Mine

    async def awaited():
        async with entered as held:
            work(held)

    if isinstance(limiter, AsyncRateLimiter):
        return awaiting(awaited())
    with entered as held:
        work(held)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("case", TABLE["cases"], ids=[each["case"].replace(" ", "_") for each in TABLE["cases"]])
def test_the_case(case, client, name, made_of, awaiting):
    decisions, unsettled, made = [], [], {}
    if "blocked" in case:
        with psycopg.connect(user="postgres") as owner:
            owner.execute("SELECT rl_block(%s, %s, '1 hour')", [case["blocked"], name])
    limiter = made_of(
        client,
        case.get("nowhere", False),
        on_decision=lambda each: decisions.append([each.name, each.ok, each.limited_by]),
        on_unsettled=lambda each: unsettled.append(each.used),
        **case.get("limiter", {}),
    )

    def value_of(value):
        if isinstance(value, str) and value.startswith("$"):
            return made[value[1:]].id
        return [{"key": name, **each} for each in value] if isinstance(value, list) else value

    for n, step in enumerate(case["steps"]):
        of = made[step["of"]] if "of" in step else limiter
        call = step.get("block") or step["call"]
        at = f"{n}: {call}"
        given = [value_of(value) for value in step.get("given", [])]
        takes_key = "key" in (RESULTS["Borrowed"]["calls"].get(call, ()) if "of" in step else CALLS[call]["given"])
        options = {**({"key": name} if takes_key else {}), **step.get("options", {})}
        if options.get("id") == "some":
            options["id"] = f"some {name}"
        if "block" in step:
            run = lambda: block(limiter, step, given, options, awaiting)  # noqa: B023, E731
        else:
            for field, value in step.get("sets", {}).items():
                setattr(of, field, value)
            run = lambda: awaiting(getattr(of, call)(*given, **options))  # noqa: B023, E731
        if "denied" in step or "refused" in step:
            with pytest.raises(Exception) as raised:
                run()
            denial = RateLimitExceeded.from_error(raised.value)
            assert (denial and denial.name) == step.get("denied"), at
            continue
        try:
            answer = run()
        except Mine:
            answer = None
        if "as" in step:
            made[step["as"]] = answer
        if "gives" in step:
            compare(answer, step["gives"], at)
        if "then" in step:
            compare(of, step["then"], at)
    if "heard" in case:
        assert decisions == case["heard"]
    assert unsettled == case.get("unsettled", [])
