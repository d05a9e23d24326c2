"""The shop of a test: on one connection, which is rolled back, with a clock that the test moves."""

import app as shop
import httpx
import pytest

pytest_plugins = ["postgres_rate_limit.testing"]
PROXY, CLIENT = "127.0.0.1", "192.0.2.1"


@pytest.fixture
def ratelimit_engine():
    return shop.engine


@pytest.fixture
async def db(ratelimit_async_connection):
    """The test's connection, to which the shop's sessions are bound: what they commit is a savepoint of the test's."""
    shop.sessions.configure(bind=ratelimit_async_connection, join_transaction_mode="create_savepoint")
    return ratelimit_async_connection


@pytest.fixture
async def visit(db):
    """Makes the browser of a client, as it arrives at the shop: from the proxy, which names the client's address."""
    browsers = []

    def visit(address=CLIENT, by=PROXY):
        transport = httpx.ASGITransport(shop.app, client=(by, 50000))
        browsers.append(
            httpx.AsyncClient(transport=transport, base_url="https://shop", headers={"X-Forwarded-For": address})
        )
        return browsers[-1]

    yield visit
    for browser in browsers:
        await browser.aclose()
