"""Applications with Flask-Limiter and slowapi, which count by the storage."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import fastapi
import flask
import flask_limiter
import flask_limiter.util
import httpx
import psycopg
import pytest
import slowapi
import slowapi.errors
import slowapi.middleware
import slowapi.util
from conftest import every, window_with_room
from limits.errors import ConfigurationError

URI = "postgresql+ratelimit://"
GONE = "postgresql+ratelimit://?host=/nowhere"


@pytest.fixture
def opened():
    """The storages whose connections are closed in the end."""
    storages = []
    yield storages
    for storage in storages:
        storage.pool.close()


def flask_app(limit, **options):
    app = flask.Flask("app")
    app.testing = True
    limiter = flask_limiter.Limiter(
        flask_limiter.util.get_remote_address,
        app=app,
        default_limits=[limit],
        headers_enabled=True,
        **{"storage_uri": URI, **options},
    )
    app.add_url_rule("/", view_func=lambda: "hello")
    return app, limiter, limiter.storage


def slowapi_app(limit, **options):
    limiter = slowapi.Limiter(
        slowapi.util.get_remote_address, headers_enabled=True, **{"storage_uri": URI, **options}
    )
    app = fastapi.FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)

    @app.get("/")
    @limiter.limit(limit)
    def hello(request: fastapi.Request, response: fastapi.Response):
        return "hello"

    return app, limiter, limiter._storage


def get_from_flask(app, times):
    """At once, in 16 threads."""
    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(lambda _: app.test_client().get("/"), range(times)))


def get_from_fastapi(app, times):
    """At once; its functions run in threads."""

    async def get():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            return await asyncio.gather(*(client.get("/") for _ in range(times)))

    return asyncio.run(get())


@pytest.fixture(params=["Flask", "FastAPI"])
def framework(request, opened):
    """What creates an application and its limiter, and what gets answers of one."""
    create, get = {"Flask": (flask_app, get_from_flask), "FastAPI": (slowapi_app, get_from_fastapi)}[request.param]

    def create_to_be_closed(*arguments, **options):
        app, limiter, storage = create(*arguments, **options)
        opened.append(storage)
        return app, limiter

    return create_to_be_closed, get


@every
def test_of_100_requests_at_once_exactly_the_limit_passes(framework, name, strategy, store):
    create, get = framework
    window_with_room(3600, 10)
    app, limiter = create("10 per hour", strategy=strategy, storage_options={"name": name, "store": store})
    answers = get(app, 100)
    codes = [answer.status_code for answer in answers]
    assert (codes.count(200), codes.count(429)) == (10, 90)
    passed = [answer for answer in answers if answer.status_code == 200]
    assert min(int(answer.headers["X-RateLimit-Remaining"]) for answer in passed) == 0

    (denied,) = get(app, 1)
    assert denied.status_code == 429
    assert (denied.headers["X-RateLimit-Limit"], denied.headers["X-RateLimit-Remaining"]) == ("10", "0")
    left = 3600 - time.time() % 3600 if strategy == "sliding-window-counter" else 3600
    assert float(denied.headers["X-RateLimit-Reset"]) == pytest.approx(time.time() + left, abs=10)
    assert int(denied.headers["Retry-After"]) == pytest.approx(left, abs=10)

    limiter.reset()
    (again,) = get(app, 1)
    assert (again.status_code, again.headers["X-RateLimit-Remaining"]) == (200, "9")


def test_what_a_request_costs_is_taken(opened, name):
    app, limiter, storage = flask_app("10 per hour", storage_options={"name": name})
    opened.append(storage)
    app.add_url_rule("/dear", "dear", limiter.limit("10 per hour", cost=4)(lambda: "dear"))
    answers = [app.test_client().get("/dear") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["6", "2", "2"]


def test_a_database_that_is_gone_is_an_error_unless_the_application_falls_back(framework, name):
    create, get = framework
    options = {"storage_uri": GONE, "storage_options": {"name": name, "timeout": 0.1}}
    app, _ = create("2 per hour", **options)
    with pytest.raises(psycopg.OperationalError):
        get(app, 1)
    app, _ = create("2 per hour", in_memory_fallback_enabled=True, **options)
    assert [get(app, 1)[0].status_code for _ in range(3)] == [200, 200, 429]


def test_a_path_that_is_long_or_has_a_nul_is_limited_as_any_other(opened, name):
    """slowapi's keys hold the path of the request."""
    limiter = slowapi.Limiter(
        slowapi.util.get_remote_address,
        default_limits=["2 per hour"],
        storage_uri=URI,
        storage_options={"name": name},
        in_memory_fallback_enabled=True,
    )
    opened.append(limiter._storage)
    app = fastapi.FastAPI()
    app.state.limiter = limiter
    app.add_middleware(slowapi.middleware.SlowAPIMiddleware)
    app.add_exception_handler(slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)

    @app.get("/{path:path}")
    def hello(path: str):
        return "hello"

    async def get(paths):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            return [(await client.get(path)).status_code for path in paths]

    for path in ("/" + "a" * 1100, "/%00", "/" + "%C3%A9" * 600):
        assert asyncio.run(get([path] * 3)) == [200, 200, 429]
    assert not limiter._storage_dead, "the process has not fallen back to a limiter of its own"


def test_a_moving_window_in_memory_is_an_error_when_the_application_starts(framework):
    create, _ = framework
    with pytest.raises(ConfigurationError, match='store is "memory"'):
        create("2 per hour", strategy="moving-window", storage_options={"store": "memory"})
