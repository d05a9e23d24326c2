"""Applications with Flask-Limiter and slowapi, which count by the storage."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext
from uuid import uuid4

import databases  # noqa: F401  configures Django
import django_ratelimit.decorators
import fastapi
import fastapi_limiter.depends
import flask
import flask_limiter
import flask_limiter.util
import httpx
import psycopg
import pyrate_limiter
import pytest
import rest_framework.exceptions
import rest_framework.response
import rest_framework.views
import slowapi
import slowapi.errors
import slowapi.middleware
import slowapi.util
from conftest import every, window_with_room
from databases import DJANGO, codes, get_from_django
from django.conf import settings
from django.core.cache import CacheKeyWarning, caches
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import HttpResponse
from django.test import override_settings
from django.utils.module_loading import import_string
from limits.errors import ConfigurationError
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from pyrate_limiter import Duration, Rate, RateItem
from test_readme import blocks

import postgres_rate_limit.rest_framework
from postgres_rate_limit import HOUR, RateLimiter, sliding_log
from postgres_rate_limit.pyrate_limiter import AsyncRateLimitBucket, KeyedBuckets, RateLimitBucket

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


def throttled(limit, name, fails=False, **options):
    """A view of Django REST framework."""

    class Throttle(postgres_rate_limit.rest_framework.AnonRateThrottle):
        rate = f"{limit}/hour"

    class View(rest_framework.views.APIView):
        throttle_classes = [Throttle]

        def get(self, request):
            if fails:
                raise rest_framework.exceptions.PermissionDenied
            return rest_framework.response.Response("hello")

    Throttle.options = {"name": name, **options}
    return View.as_view()


def cache(name, using="default", **options):
    alias = uuid4().hex
    caches.settings[alias] = {
        "BACKEND": "postgres_rate_limit.django_cache.RateLimitCache", "LOCATION": using, "KEY_PREFIX": "", "VERSION": 1,
        "TIMEOUT": 300, "OPTIONS": {"name": name, **options},
    }
    return alias


def counted(limit, name, fails=False, **options):
    """A view with django-ratelimit."""
    alias = cache(name, **options)

    @django_ratelimit.decorators.ratelimit(key="ip", rate=f"{limit}/d", group=name, block=False)
    def view(request):
        if request.limited:
            return HttpResponse(status=429)
        if fails:
            raise PermissionDenied
        return HttpResponse("hello")

    def on_its_cache(request):
        settings.RATELIMIT_USE_CACHE = alias
        return view(request)

    return on_its_cache


STORES_OF_DJANGO = [throttled, counted]


@asynccontextmanager
async def fastapi_limited(limit, name, **options):
    """What gets codes of an application with fastapi-limiter, each client's, of its own event loop."""
    async with AsyncConnectionPool(min_size=1, open=False, timeout=5, kwargs={"prepare_threshold": None}) as pool:
        bucket = AsyncRateLimitBucket([Rate(limit, Duration.HOUR)], pool, name=name, **options)
        limiter = pyrate_limiter.Limiter(KeyedBuckets(bucket))

        async def by_header(request):
            return request.headers.get("client", "")

        app = fastapi.FastAPI()
        limit_of = fastapi_limiter.depends.RateLimiter(limiter, identifier=by_header)

        @app.get("/", dependencies=[fastapi.Depends(limit_of)])
        async def hello():
            return "hello"

        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:

            async def get(times=1, of="a"):
                return codes(await asyncio.gather(*(client.get("/", headers={"client": of}) for _ in range(times))))

            yield get


@contextmanager
def atomic_requests():
    settings = connections["default"].settings_dict
    settings["ATOMIC_REQUESTS"] = True
    try:
        yield
    finally:
        settings["ATOMIC_REQUESTS"] = False


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


@pytest.mark.parametrize("create", STORES_OF_DJANGO)
def test_of_100_requests_at_once_to_django_exactly_the_limit_passes(create, name):
    view = create(10, name)
    answers = codes(get_from_django(view, 100, threads=16))
    assert (answers.count(200), answers.count(429)) == (10, 90)


@pytest.mark.parametrize("create", STORES_OF_DJANGO)
def test_a_request_that_fails_is_counted_outside_of_its_transaction_only(create, name):
    with atomic_requests():
        assert codes(get_from_django(create(2, name, fails=True), 5)) == [403] * 5, "a rollback returns what it took"
        assert codes(get_from_django(create(2, name, fails=True, using="limits"), 5)) == [403] * 2 + [429] * 3
        assert codes(get_from_django(create(2, f"other {name}"), 5)) == [200] * 2 + [429] * 3
    assert codes(get_from_django(create(2, f"third {name}", fails=True), 5)) == [403] * 2 + [429] * 3


@pytest.mark.parametrize("options", [{"kind": "sliding log"}, {"kind": "fixed window"}, {"kind": "token bucket"}])
def test_a_throttle_says_how_long_to_wait(options, name):
    view = throttled(2, name, **options)
    answers = get_from_django(view, 3)
    left = 1800 if options["kind"] == "token bucket" else 3600
    assert codes(answers) == [200, 200, 429]
    assert int(answers[2].headers["Retry-After"]) == pytest.approx(left, abs=10)
    # A client that sends a long header has a limit, too.
    long = {"x-forwarded-for": "1" * 1100}
    assert codes(get_from_django(view, 3, **long)) == [200, 200, 429]
    (never,) = get_from_django(throttled(0, name, **options))
    assert never.status_code == 429 and "Retry-After" not in never.headers


def test_throttles_that_are_denied_together_in_a_transaction_take_nothing(name):
    """Each of a view's throttles is asked, also after a denial."""

    class Wide(postgres_rate_limit.rest_framework.AnonRateThrottle):
        rate, scope, options = "5/hour", "wide", {"name": name}

    class Narrow(Wide):
        rate, scope = "1/hour", "narrow"

    class View(rest_framework.views.APIView):
        throttle_classes = [Wide, Narrow]

        def get(self, request):
            return rest_framework.response.Response("hello")

    limiter = RateLimiter({name: sliding_log(5, HOUR)}, db=connections["default"])
    for atomic, left in ((True, 4), (False, 1)):
        with atomic_requests() if atomic else nullcontext():
            assert codes(get_from_django(View.as_view(), 4)) == [200] * atomic + [429] * (4 - atomic)
        assert limiter.check(name, "throttle_wide_127.0.0.1/5/3600").remaining == pytest.approx(left if atomic else 0)


@pytest.mark.parametrize("kind", ["sliding log", "sliding window", "fixed window", "token bucket"])
def test_throttles_of_one_scope_have_a_limit_per_rate(name, kind):
    class Hourly(postgres_rate_limit.rest_framework.AnonRateThrottle):
        rate, options = "4/hour", {"name": name, "kind": kind}

    class Daily(Hourly):
        rate = "6/day"

    class View(rest_framework.views.APIView):
        throttle_classes = [Hourly, Daily]

        def get(self, request):
            return rest_framework.response.Response("hello")

    assert codes(get_from_django(View.as_view(), 4)) == [200] * 4
    limiter = RateLimiter({}, db=connections["default"])
    left = {}
    for rate, period in ((4, HOUR), (6, 24 * HOUR)):
        config = {"kind": kind, "rate": rate, "period": period}
        if kind == "fixed window":
            config["start"] = "first request"
        key = f"throttle_anon_127.0.0.1/{rate}/{int(period.total_seconds())}"
        left[rate] = limiter.check(name, key, config=config).remaining
    assert left == {4: pytest.approx(0, abs=0.1), 6: pytest.approx(2, abs=0.1)}


def test_the_options_of_all_throttles_are_a_setting(name):
    view = throttled(1, name)
    for options, passed in (({"using": "default"}, 1), ({"kind": "fixed windows"}, 0)):
        with override_settings(POSTGRES_RATE_LIMIT={"name": "not this", **options}):
            assert codes(get_from_django(view)) == [200 if passed else 500]


def test_the_settings_of_the_readme(name):
    written = {"DATABASES": {"default": DJANGO}, "CACHES": {"default": {"BACKEND": "none"}}}
    exec(next(block for block in blocks("python") if "DEFAULT_THROTTLE_CLASSES" in block), written)
    classes = [import_string(path) for path in written["REST_FRAMEWORK"]["DEFAULT_THROTTLE_CLASSES"]]
    assert classes == [
        postgres_rate_limit.rest_framework.AnonRateThrottle, postgres_rate_limit.rest_framework.UserRateThrottle
    ]
    assert written["DATABASES"]["limits"]["NAME"] == DJANGO["NAME"]
    with override_settings(POSTGRES_RATE_LIMIT={**written["POSTGRES_RATE_LIMIT"], "name": name}):
        assert codes(get_from_django(throttled(1, name), 2)) == [200, 429]
    exec(next(block for block in blocks("python") if "CACHES" in block), written)
    exec(next(block for block in blocks("python") if "may_log_in" in block), written)
    exec(next(block for block in blocks("python") if "KeyedBuckets" in block), {})
    cached = {**written["CACHES"]["limits"], "OPTIONS": {"name": name}}
    with override_settings(CACHES={**written["CACHES"], "limits": cached}):
        assert caches["limits"].add("a", 1) and caches["limits"].incr("a") == 2
        assert [written["may_log_in"](7) for _ in range(7)] == [True] * 5 + [False] * 2


def test_a_cache_has_whole_numbers_until_their_time_out(name):
    numbers = caches[cache(name)]
    assert numbers.get("a") is None and numbers.get("a", 7) == 7 and not numbers.has_key("a")
    with pytest.raises(ValueError, match="Key 'a' not found"):
        numbers.incr("a")
    assert numbers.add("a", 0, 60) and numbers.get("a", 7) == 0
    assert not numbers.add("a", 1, 60) and not numbers.add("a", 1, 3600) and numbers.get("a") == 0
    assert (numbers.incr("a"), numbers.incr("a", 5), numbers.decr("a", 4), numbers.get("a")) == (1, 6, 2, 2)
    assert numbers.get_or_set("b", 4) == 4 and numbers.incr_version("b") == 2 and numbers.get("b", version=2) == 4
    for out in (3, 10**7, 10**12):
        assert numbers.decr("a", out) == 2 and numbers.incr("a", 10**7 + out) == 2, "what leads out adds nothing"
    numbers.set("a", 9_999_999, None)
    assert numbers.incr("a") == 9_999_999 and not numbers.add("a", 1)
    numbers.set_many({"a": 1, "c": 2}, 1)
    numbers.add("d", 3, 1)
    assert numbers.get_many(["a", "c", "d"]) == {"a": 1, "c": 2, "d": 3} and numbers.incr("d") == 4
    deadline = time.monotonic() + 60
    while numbers.get_many(["a", "c", "d"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(ValueError):
        numbers.incr("d")
    # Another time-out, whether the one before was longer or shorter.
    assert numbers.add("a", 5, 3600) and numbers.incr("a") == 6 and numbers.add("d", 0, None)
    assert numbers.delete("a") and not numbers.delete("a") and numbers.get("a") is None
    numbers.set("d", 1, 0)
    assert numbers.add("a", 1, 0) and numbers.get("a") is numbers.get("d") is None
    long = "é" * 1200
    with pytest.warns(CacheKeyWarning):
        assert numbers.add(long, 2) and numbers.incr(long) == 3
    numbers.clear()
    assert numbers.get("b", version=2) is None
    for value in ("1", 1.5, True, None, -1, 10**7):
        with pytest.raises(TypeError, match="value is .*; allowed: a whole number from 0 to 9,999,999"):
            numbers.set("a", value)
    for options in ({"remember_denials": True}, {"on_error": "ajar"}, {"name": ""}):
        with pytest.raises((TypeError, ValueError)):
            caches[cache(**{"name": name, **options})]


async def test_a_cache_counts_with_await(name):
    numbers = caches[cache(name)]
    assert await numbers.aadd("a", 1) and await numbers.aincr("a") == 2 and await numbers.aget("a") == 2


def test_each_of_100_calls_of_a_cache_at_once_has_a_number_of_its_own(name):
    alias = cache(name)

    def count(_):
        try:
            return 1 if caches[alias].add("a", 1, 60) else caches[alias].incr("a")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(16) as threads:
        assert sorted(threads.map(count, range(100))) == list(range(1, 101))


def test_of_two_that_set_a_new_key_of_a_cache_the_second_waits_for_the_first(name):
    alias = cache(name)

    def set_other():
        try:
            caches[alias].set("a", 5, 60)
        finally:
            connections.close_all()

    blocked = "SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    with psycopg.connect(autocommit=True) as database, ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            caches[alias].set("a", 3, 60)
            other = threads.submit(set_other)
            while not database.execute(blocked, [connections["default"].connection.info.backend_pid]).fetchall():
                assert not other.done()
        other.result(60)
    assert (caches[alias].get("a"), caches[alias].incr("a")) == (5, 6)


async def test_of_100_requests_at_once_to_fastapi_limiter_exactly_the_limit_passes(name):
    async with fastapi_limited(10, name) as get, fastapi_limited(10, name) as another:
        answers = sum(await asyncio.gather(get(50), another(50)), [])
        assert (answers.count(200), answers.count(429)) == (10, 90)
        assert await get(1, "b") == [200]


@pytest.mark.parametrize("kind", ["sliding log", "fixed window", "sliding window"])
def test_a_bucket_takes_from_all_of_its_rates_or_none(kind, name):
    with ConnectionPool(min_size=1) as pool:
        rates = [Rate(3, Duration.HOUR), Rate(5, Duration.DAY)]
        bucket = RateLimitBucket(rates, pool, "a", name=name, kind=kind)
        limiter = pyrate_limiter.Limiter(bucket)
        assert [limiter.try_acquire("any", 2, blocking=False) for _ in range(2)] == [True, False]
        assert bucket.failing_rate is rates[0] and bucket.count() == 2
        item = RateItem("any", bucket.now(), 2)
        assert not bucket.put(item) and 0 < bucket.waiting(item) <= 2 * 3_600_000
        assert not bucket.put(RateItem("any", bucket.now(), 4)) and bucket.waiting(RateItem("any", 0, 4)) == -1
        assert bucket.put(RateItem("any", bucket.now(), 0)) and bucket.failing_rate is None
        assert limiter.try_acquire("other", blocking=False) and not limiter.try_acquire("other", blocking=False)
        assert bucket.of("b").put(item) and bucket.of("b").count() == 2
        if kind == "sliding log":
            assert bucket.peek(3) is None and bucket.peek(2).timestamp == pytest.approx(bucket.now(), abs=60_000)
        bucket.flush()
        assert bucket.count() == 0 and bucket.put(item) and bucket.leak() == 0


def test_a_limiter_waits_until_an_item_passes(name):
    with ConnectionPool(min_size=1) as pool:
        bucket = RateLimitBucket([Rate(1, 200)], pool, name=name, remember_denials=True)
        began = time.monotonic()
        assert all(pyrate_limiter.Limiter(bucket).try_acquire("a") for _ in range(3))
        assert 0.4 <= time.monotonic() - began < 60


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
