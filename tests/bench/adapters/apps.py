"""Applications in Python that answer hello, each with all stores that its limiter can have, at /STORE/LOAD; the key is
the header x-key. adapters.py runs and asks them: gunicorn "apps:flask()", gunicorn "apps:django()", uvicorn --factory
apps:fastapi. REDIS is the socket of Redis; PGHOST and the others are the database."""

import os
import time
from contextlib import asynccontextmanager

# Requests an hour of a key: more than a run sends, and few.
LOADS = {"admitted": 10_000, "denied": 10}
REDIS = os.environ["REDIS"]


def flask():
    import flask
    import flask_limiter
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    import postgres_rate_limit.limits  # registers the scheme

    ours = lambda **options: lambda name: ("postgresql+ratelimit://", {"name": name, **options})
    stores = {
        "table": ours(),
        "remembered": ours(remember_denials=True),
        "memory": ours(store="memory"),
        "own": lambda name: ("memory://", {}),
        "redis": lambda name: (f"redis+unix://{REDIS}", {"key_prefix": name}),
    }

    mounts = {}
    for store, make in {"none": None, **stores}.items():
        app = mounts[f"/{store}"] = flask.Flask(store)
        if make:
            uri, options = make(store)
            key = lambda: flask.request.headers["x-key"]
            limiter = flask_limiter.Limiter(key, app=app, storage_uri=uri, storage_options=options)
        for load, limit in LOADS.items():
            hello = lambda: "hello"
            hello.__name__ = load  # by which the limits differ
            app.add_url_rule(f"/{load}", view_func=limiter.limit(f"{limit} per hour")(hello) if make else hello)
    return DispatcherMiddleware(flask.Flask("app"), mounts)


def django():
    from django.conf import settings

    cache = lambda backend, where: {
        "BACKEND": f"django.core.cache.backends.{backend}",
        "LOCATION": where,
        "OPTIONS": {} if "redis" in backend else {"MAX_ENTRIES": 100_000},  # 300 are fewer than the keys
    }
    database = os.environ["PGDATABASE"]
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": database, "CONN_MAX_AGE": None}},
        CACHES={
            "default": cache("locmem.LocMemCache", "own"),
            "own": cache("locmem.LocMemCache", "own"),
            "redis": cache("redis.RedisCache", f"unix://{REDIS}"),
            "postgres": cache("db.DatabaseCache", "django_cache"),
        },
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
    )
    import django
    from django.core.management import call_command
    from django.core.wsgi import get_wsgi_application
    from django.urls import path

    django.setup()
    call_command("createcachetable")
    from django.core.cache import caches
    from django.utils.connection import ConnectionProxy
    from rest_framework.renderers import JSONRenderer
    from rest_framework.response import Response
    from rest_framework.throttling import SimpleRateThrottle
    from rest_framework.views import APIView

    from postgres_rate_limit.rest_framework import RateLimitThrottle

    class Hello(APIView):
        authentication_classes = permission_classes = ()
        renderer_classes = (JSONRenderer,)

        def get(self, request):
            return Response("hello")

    ours = lambda **options: lambda name: (RateLimitThrottle, {"options": {"name": name, **options}})
    theirs = lambda alias: lambda name: (SimpleRateThrottle, {"cache": ConnectionProxy(caches, alias)})
    stores = {
        "table": ours(),
        "remembered": ours(remember_denials=True),
        "memory": ours(store="memory", kind="sliding window"),
        "own": theirs("own"),
        "redis": theirs("redis"),
        "postgres": theirs("postgres"),
    }
    urls = [path("none/admitted", Hello.as_view())]
    for store, make in stores.items():
        for load, limit in LOADS.items():
            scope = f"{store}:{load}"
            base, attributes = make(scope)
            key = lambda self, request, view: f"{self.scope}:{request.headers['x-key']}"
            attributes |= {"scope": scope, "rate": f"{limit}/hour", "get_cache_key": key}
            throttle = type("Throttle", (base,), attributes)
            urls.append(path(f"{store}/{load}", Hello.as_view(throttle_classes=(throttle,))))
    settings.ROOT_URLCONF = tuple(urls)
    return get_wsgi_application()


def fastapi():
    from fastapi import Depends, FastAPI, HTTPException, Request
    from fastapi_limiter.depends import RateLimiter
    from psycopg_pool import AsyncConnectionPool, ConnectionPool
    from pyrate_limiter import BucketFactory, Duration, InMemoryBucket, Limiter, PostgresBucket, Rate, RateItem
    from pyrate_limiter import RedisBucket
    from pyrate_limiter.buckets.redis_bucket import LuaScript
    import redis
    import redis.asyncio

    from postgres_rate_limit import HOUR, SECOND, AsyncRateLimiter, fixed_window
    from postgres_rate_limit.pyrate_limiter import AsyncRateLimitBucket, KeyedBuckets

    pool, threads = AsyncConnectionPool(min_size=10, open=False), ConnectionPool(open=True)
    script = redis.Redis(unix_socket_path=REDIS).script_load(LuaScript.PUT_ITEM)
    client = redis.asyncio.Redis(unix_socket_path=REDIS)

    class Keyed(BucketFactory):
        """A bucket of theirs for each key, as their documentation has it."""

        def __init__(self, make):
            self.make, self.buckets = make, {}

        def wrap_item(self, name, weight=1):
            return RateItem(name, time.time_ns() // 1_000_000, weight)

        def get(self, item):
            bucket = self.buckets.get(item.name)
            if bucket is None:
                bucket = self.buckets[item.name] = self.make(item.name)
                self.schedule_leak(bucket)
            return bucket

    ours = lambda **options: lambda name, rates: KeyedBuckets(AsyncRateLimitBucket(rates, pool, name=name, **options))
    stores = {
        "table": ours(),
        "remembered": ours(remember_denials=True),
        "memory": ours(store="memory", kind="sliding window"),
        "own": lambda name, rates: Keyed(lambda key: InMemoryBucket(rates)),
        "redis": lambda name, rates: Keyed(lambda key: RedisBucket(rates, client, f"{name}:{key}", script)),
        # A bucket is a table: one for all keys, which may have as many requests as all of them.
        "postgres": lambda name, rates: PostgresBucket(
            threads, name.replace(":", "_"), [Rate(rates[0].limit * 1000 if rates[0].limit > 10 else 10, Duration.HOUR)]
        ),
    }
    config = lambda rate: fixed_window(rate, HOUR, store="memory", save=SECOND)
    saved = AsyncRateLimiter({load: config(limit) for load, limit in LOADS.items()}, db=pool, defined=True)

    @asynccontextmanager
    async def lifespan(app):
        async with pool:
            await saved.define()
            yield

    app = FastAPI(lifespan=lifespan)

    async def key(request):
        return request.headers["x-key"]

    async def hello():
        return "hello"

    for store, make in stores.items():
        for load, limit in LOADS.items():
            limiter = Limiter(make(f"{store}:{load}", [Rate(limit, Duration.HOUR)]))
            app.get(f"/{store}/{load}", dependencies=[Depends(RateLimiter(limiter, identifier=key))])(hello)

    async def limited(load: str, request: Request):
        if not (await saved.limit(load, await key(request))).ok:
            raise HTTPException(429)

    # In memory and saved, which our client has and our buckets don't.
    app.get("/saved/{load}", dependencies=[Depends(limited)])(hello)
    app.get("/none/admitted")(hello)
    return app
