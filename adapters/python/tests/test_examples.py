"""The programs of docs/python.md and docs/getting-started.md."""

import asyncio
from ipaddress import IPv4Address

import httpx
import psycopg
import pytest
from databases import ASYNC_TRANSACTIONS, TRANSACTIONS
from django.http import HttpRequest, HttpResponse
from examples import getting_started, with_django, with_fastapi, with_psycopg, with_sqlalchemy

from postgres_rate_limit import RateLimitExceeded

# A table that only the session has: the role may create no other.
MESSAGES = "CREATE TEMPORARY TABLE messages (id int GENERATED ALWAYS AS IDENTITY, author text, body text)"


@pytest.fixture
def messages():
    """The table of the application."""
    with psycopg.connect("user=postgres", autocommit=True) as connection:
        connection.execute("CREATE TABLE messages (author text, body text NOT NULL); GRANT ALL ON messages TO PUBLIC")
        yield lambda: connection.execute("SELECT count(*) FROM messages").fetchone()[0]
        connection.execute("DROP TABLE messages")


def test_messages_on_a_pool(name, messages):
    limiter = with_psycopg.limiter
    with with_psycopg.pool:
        sent = [with_psycopg.send_message(name, "hello").ok for _ in range(4)]
        assert (sent, messages()) == ([True, True, True, False], 3)
        with pytest.raises(psycopg.errors.NotNullViolation):
            with_psycopg.send_message(f"other {name}", None)
        assert limiter.check("sendMessage", f"other {name}").remaining == 3  # the token is back
        with pytest.raises(RateLimitExceeded):
            for _ in range(101):
                with_psycopg.sign_up()
        assert limiter.reset("signUp")
    with getting_started.pool:
        author = f"first {name}"
        with pytest.raises(psycopg.errors.NotNullViolation):
            getting_started.send(author, None)
        waits = [getting_started.send(author, "hello") for _ in range(4)]
        assert waits[:3] == [None] * 3
        assert 0 < waits[3] <= 12
        assert messages() == 6


def test_messages_in_a_session(name):
    import sqlalchemy

    with TRANSACTIONS["SQLAlchemy Session"]() as session:
        session.execute(sqlalchemy.text(MESSAGES))
        assert [with_sqlalchemy.send_message(session, name, "hello") for _ in range(4)] == [True, True, True, False]
        assert session.query(with_sqlalchemy.Message).count() == 3


async def test_messages_in_a_session_with_await(name):
    import sqlalchemy

    async with ASYNC_TRANSACTIONS["SQLAlchemy AsyncSession"]() as session:
        await session.execute(sqlalchemy.text(MESSAGES))
        sent = [await with_sqlalchemy.send_message_async(session, name, "hello") for _ in range(4)]
        assert sent == [True, True, True, False]
        assert len((await session.scalars(sqlalchemy.select(with_sqlalchemy.Message))).all()) == 3


async def test_fastapi_answers_429_with_headers(name):
    async with with_fastapi.lifespan(with_fastapi.app):
        transport = httpx.ASGITransport(with_fastapi.app, client=(str(IPv4Address(int(name[:8], 16))), 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            answers = await asyncio.gather(*(client.get("/search") for _ in range(32)))
            denied = await client.get("/search")
    codes = [answer.status_code for answer in answers]
    assert codes.count(200) in (30, 31) and codes.count(200) + codes.count(429) == 32
    passed = next(answer for answer in answers if answer.status_code == 200)
    assert passed.json() == "found" and passed.headers["ratelimit-policy"] == '"search";q=30;w=60'
    if denied.status_code == 429:  # a slow machine has a token again
        assert denied.headers["retry-after"] in ("1", "2") and denied.headers["ratelimit"].startswith('"search";r=0;t=')
        assert denied.json() == {"detail": "Too Many Requests"}


def test_django_answers_429_with_headers(name):
    request = HttpRequest()
    request.META["REMOTE_ADDR"] = str(IPv4Address(int(name[:8], 16)))
    answers = [with_django.search(request) for _ in range(40)]
    codes = [answer.status_code for answer in answers]
    assert codes[:30] == [200] * 30 and codes.count(429) > 0
    denied = next(answer for answer in answers if answer.status_code == 429)
    assert isinstance(denied, HttpResponse) and denied.headers["Retry-After"] in ("1", "2")
    with_django.connection.close()
