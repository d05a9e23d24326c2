"""A restart of the server loses no count, and the stores of frameworks go on. adapters/run runs it last, and alone."""

import os
import subprocess
from pathlib import Path

import psycopg
import pytest
from databases import codes, get_from_django
from psycopg_pool import ConnectionPool
from pyrate_limiter import Duration, Limiter, Rate
from test_failing import django_goes_to_the_environment
from test_frameworks import STORES_OF_DJANGO

from postgres_rate_limit.pyrate_limiter import RateLimitBucket

# adapters/run copies the package to target/adapters/python/source.
SERVER = Path(__file__).parents[5] / "scripts/server"


def restart():
    subprocess.run([SERVER, "ctl", os.environ["PGHOST"], "restart", "-m", "fast"], check=True)


@pytest.mark.parametrize("create", STORES_OF_DJANGO)
def test_a_store_of_django(create, name):
    with django_goes_to_the_environment(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True):
        view = create(3, name)
        assert codes(get_from_django(view, 2)) == [200, 200]
        restart()
        assert codes(get_from_django(view, 2)) == [200, 429]


def test_a_bucket_of_pyrate_limiter(name):
    with ConnectionPool(min_size=1) as pool:
        limiter = Limiter(RateLimitBucket([Rate(3, Duration.DAY)], pool, name=name))

        def acquire():
            """The answer when there is a connection again."""
            while True:
                try:
                    return limiter.try_acquire("any", blocking=False)
                except psycopg.OperationalError:
                    pass

        assert [acquire(), acquire()] == [True, True]
        restart()
        assert [acquire(), acquire()] == [True, False]
