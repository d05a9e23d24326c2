"""A conftest.py with which each worker of pytest-xdist has a database of its own, which docs/testing.md shows."""

import pytest

pytest_plugins = ["postgres_rate_limit.testing"]


@pytest.fixture(scope="session")
def ratelimit_conninfo(worker_id):
    """The database of this worker: app_test_gw0, app_test_gw1, …; app_test without workers."""
    return "dbname=app_test" if worker_id == "master" else f"dbname=app_test_{worker_id}"
