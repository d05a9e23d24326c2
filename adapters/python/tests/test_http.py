"""A denial as an answer of HTTP, in several frameworks."""

import sys

import django.http
import fastapi
import flask
import httpx
import psycopg
import pytest
from databases import psycopg_pool
from fastapi.responses import PlainTextResponse
from fastapi.testclient import TestClient

from postgres_rate_limit import (
    HOUR,
    AllResult,
    RateLimiter,
    RateLimitExceeded,
    RequestResult,
    Result,
    address_key,
    fixed_window,
    too_many_requests,
    try_again,
)

pytestmark = pytest.mark.edition("extension")  # it is made in the client
DENIED = Result(
    False,
    12.3,
    None,
    0,
    10,
    None,
    "tokens",
    {"RateLimit": '"a";r=0;t=13', "RateLimit-Policy": '"a";q=10;w=60', "Retry-After": "13"},
)
NEVER = Result(False, None, None, 5, 10, None, "tokens", {"RateLimit": '"b";r=5'})


def denied(name, retry_after):
    return RequestResult(name, "", False, retry_after, None, 0, 10, None, "tokens")


def test_a_denial_is_429_with_its_headers():
    assert too_many_requests(DENIED) == {"status_code": 429, "headers": dict(DENIED.headers)}
    assert too_many_requests(RateLimitExceeded("a", 0.2)) == {"status_code": 429, "headers": {"Retry-After": "1"}}
    github = RateLimitExceeded("a", 2, None, {"x-ratelimit-remaining": "0", "retry-after": "2"})
    assert too_many_requests(github)["headers"] == {"x-ratelimit-remaining": "0", "Retry-After": "2"}


def test_what_never_passes_has_no_retry_after():
    assert too_many_requests(NEVER)["headers"] == {"RateLimit": '"b";r=5'}
    assert too_many_requests(RateLimitExceeded("a"))["headers"] == {}
    assert too_many_requests(RateLimitExceeded("a", None, None, {"Retry-After": "0"}))["headers"] == {}
    assert too_many_requests(AllResult(False, [denied("a", None), denied("b", None)]))["headers"] == {}
    # The second is a dry run.
    assert too_many_requests(AllResult(False, [denied("a", 3), denied("b", None)]))["headers"] == {"Retry-After": "3"}


def test_of_several_the_longest_wait_counts():
    github = RateLimitExceeded("a", 60.5, None, {"x-ratelimit-remaining": "0", "retry-after": "61"})
    assert too_many_requests(DENIED, github)["headers"] == {
        "RateLimit": '"a";r=0;t=13', "RateLimit-Policy": '"a";q=10;w=60', "x-ratelimit-remaining": "0", "Retry-After": "61",
    }  # fmt: skip
    other = Result(False, 3, None, 0, 1, None, "tokens", {"RateLimit": '"c";r=0;t=3', "Retry-After": "3"})
    both = too_many_requests(other, DENIED)["headers"]
    assert (both["RateLimit"], both["Retry-After"]) == ('"c";r=0;t=3, "a";r=0;t=13', "13")
    assert too_many_requests(DENIED, NEVER)["headers"] == {
        "RateLimit": '"a";r=0;t=13, "b";r=5',
        "RateLimit-Policy": '"a";q=10;w=60',
    }
    assert too_many_requests(AllResult(False, [denied("a", 3), denied("b", 7.5)]))["headers"] == {"Retry-After": "8"}
    if sys.version_info >= (3, 11):
        group = ExceptionGroup(
            "of a TaskGroup", [RateLimitExceeded("a", 3), ExceptionGroup("", [RateLimitExceeded("b", 7)])]
        )
        assert too_many_requests(group)["headers"] == {"Retry-After": "7"}
        with pytest.raises(ExceptionGroup):
            too_many_requests(ExceptionGroup("", [RateLimitExceeded("a", 3), OSError()]))


def test_of_several_the_longest_wait_is_in_the_text():
    assert try_again(DENIED, RateLimitExceeded("a", 300)) == "try again in 5 minutes"
    assert try_again(AllResult(False, [denied("a", 3), denied("b", 7.5)])) == "try again in 8 seconds"
    assert try_again(DENIED, NEVER) == "this can never pass"
    for wrong in ([], [Result(True, None, None, 1, 1, None)]):
        with pytest.raises(ValueError, match="allowed: denials"):
            try_again(*wrong)


def test_what_is_no_denial():
    with pytest.raises(ValueError, match="allowed: denials"):
        too_many_requests(Result(True, None, None, 1, 1, None))
    with pytest.raises(ValueError, match="allowed: denials"):
        too_many_requests()
    with pytest.raises(ConnectionResetError):
        too_many_requests(ConnectionResetError())


def test_holds_leases_and_denials_of_the_database(name):
    with psycopg_pool() as pool:
        limiter = RateLimiter({name: fixed_window(1, HOUR, start="first request")}, db=pool)
        assert limiter.hold(name)
        for hold in (limiter.hold(name, ttl=60), limiter.hold_all([{"name": name}])):
            assert 0 < int(too_many_requests(hold)["headers"]["Retry-After"]) <= 3600
        assert too_many_requests(limiter.hold(name, count=2))["headers"] == {}
        with pytest.raises(psycopg.Error) as raised, pool.connection() as connection:
            connection.execute(
                "SELECT rl_limit(%s, throws => true, config => rl_fixed_window(1, '1 hour', first_request => true))",
                [name],
            )
        assert 0 < int(too_many_requests(raised.value)["headers"]["Retry-After"]) <= 3600


def test_frameworks_answer_it(name):
    app = fastapi.FastAPI()

    @app.exception_handler(RateLimitExceeded)
    async def denied(request, error):
        return PlainTextResponse(f"too many: {try_again(error)}", **too_many_requests(error))

    @app.get("/raises")
    def raises():
        raise RateLimitExceeded("a", 2)

    @app.get("/looks")
    def looks():
        raise fastapi.HTTPException(**too_many_requests(DENIED), detail=try_again(DENIED))

    @app.get("/host")
    def host(request: fastapi.Request):
        return request.client.host

    with TestClient(app) as client:
        answers = [client.get("/raises"), client.get("/looks")]
        with pytest.raises(ValueError):
            address_key(client.get("/host").json())  # "testclient", as docs/python.md says
    with TestClient(app, client=("192.0.2.1", 50000)) as client:
        assert address_key(client.get("/host").json()) == "192.0.2.1"
    assert [(each.status_code, each.headers["retry-after"], each.text) for each in answers] == [
        (429, "2", "too many: try again in 2 seconds"), (429, "13", '{"detail":"try again in 13 seconds"}'),
    ]  # fmt: skip

    small = flask.Flask("app")
    small.register_error_handler(RateLimitExceeded, lambda error: ("too many", *too_many_requests(error).values()))
    small.add_url_rule("/", view_func=lambda: raises())
    answer = small.test_client().get("/")
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "2")

    status, headers = too_many_requests(DENIED).values()
    assert django.http.HttpResponse("too many", status=status, headers=headers)["Retry-After"] == "13"
    assert httpx.Response(**too_many_requests(DENIED)).headers["retry-after"] == "13"
