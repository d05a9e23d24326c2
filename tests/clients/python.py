"""ratelimit from Python, with psycopg 3, on what setup.sql prepares.

Connects with libpq's variables (PGHOST, PGUSER, PGDATABASE, …), as a role that has EXECUTE on
rl_limit, rl_check and rl_credit. Every claim is asserted: it fails where one does not hold.
"""

import json
import math
import subprocess

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb


def send_message(conn, user, body):
    with conn.transaction():  # an exception rolls back and returns the token
        # In FROM the function runs once. ::text: the key is text, and psycopg sends an int as an int.
        take = "SELECT ok, retry_after, retry_at FROM rl_limit('sendMessage', %s::text)"
        limit = conn.execute(take, [user]).fetchone()
        if limit.ok:
            conn.execute("INSERT INTO messages VALUES (%s, %s)", [user, body])
        return limit


def send_or_raise(conn, user, body):
    """A denial is an error here, and takes the whole transaction with it."""
    with conn.transaction():
        conn.execute("INSERT INTO messages VALUES (%s, %s)", [user, body])
        conn.execute("SELECT ok FROM rl_limit('sendMessage', %s::text, throws => true)", [user])


# Errors that say "not now". All others are denials, or mistakes that must not switch the limit off.
NOT_NOW = {"25006", "53100", "53200", "53300", "55P03", "57014", "57P01", "57P02", "57P03"}


def may_fail_open(error, conninfo):
    """conninfo is of the server itself, not of a pooler, and has a connect_timeout."""
    if error.sqlstate is not None and not error.sqlstate.startswith("08"):
        return error.sqlstate in NOT_NOW
    # No connection, or the login was refused. A server that answers has refused it. 1: it starts or ends; 2: none.
    return subprocess.run(["pg_isready", "-q", "-d", conninfo]).returncode in (1, 2)


def http_status(error):
    """The status of a response where the limit wasn't taken: no error lets the request pass."""
    if error.sqlstate == "PT429":
        return 429
    if error.sqlstate is None or error.sqlstate.startswith("08") or error.sqlstate in NOT_NOW:
        return 503
    return 400 if error.sqlstate == "22023" else 500


# Takes the tokens of a job in advance, and stores when to run it: without a retry_at, at once.
# One statement, so one transaction. No row: too much is reserved already.
SCHEDULE = """
    INSERT INTO jobs (owner, estimate, run_at)
    SELECT %(user)s, %(estimate)s, coalesce(retry_at, now())
    FROM rl_limit('llmTokens', %(user)s::text, count => %(estimate)s, reserve => true) WHERE ok
    RETURNING id"""
# The job is done: gives back what it did not use, in the statement that deletes it.
SETTLE = """
    WITH done AS (DELETE FROM jobs WHERE id = %(job)s RETURNING owner, estimate)
    SELECT remaining FROM done, LATERAL rl_credit('llmTokens', owner::text, estimate - %(used)s)"""

# autocommit: else conn.transaction() is a savepoint, and the limit stays locked until conn.commit().
with psycopg.connect(autocommit=True, row_factory=namedtuple_row) as conn:
    user = conn.execute("INSERT INTO users (name) VALUES ('ada') RETURNING id").fetchone().id

    # 1. An empty message breaks a constraint: the transaction rolls back, and no token is gone.
    try:
        send_message(conn, user, "")
        raise AssertionError("an empty message was sent")
    except psycopg.errors.CheckViolation:
        pass
    check = "SELECT remaining FROM rl_check('sendMessage', %s::text)"
    assert conn.execute(check, [user]).fetchone().remaining == 3

    # 2. Three pass; the fourth is denied, by an ordinary row that says when to try again.
    assert all(send_message(conn, user, body).ok for body in ["one", "two", "three"])
    denied = send_message(conn, user, "one too many")
    assert not denied.ok and 80_000 < denied.retry_after <= 86_400
    print(f"denied: Retry-After: {math.ceil(denied.retry_after)}, at {denied.retry_at}")
    check = "SELECT retry_at = %s AS same FROM rl_check('sendMessage', %s::text)"
    assert conn.execute(check, [denied.retry_at, user]).fetchone().same, "it changed on its way"

    # 3. The same as an error. retryAfter is in milliseconds, null where it can never pass.
    try:
        send_or_raise(conn, user, "one too many")
        raise AssertionError("it passed")
    except psycopg.Error as error:
        if error.sqlstate != "PT429":
            raise
        assert http_status(error) == 429
        retry_ms = json.loads(error.diag.message_detail)["retryAfter"]
    assert 80_000_000 < retry_ms <= 86_400_000
    for sql, status in [
        ("SELECT ok FROM rl_limit('sendMessage', repeat('a', 1025))", 400),
        ("SELECT ok FROM rl_limit('sendMessage', NULL)", 500),
        ("SELECT ok FROM rl_limit('undefined', 'a')", 500),
        ("DO $$ BEGIN RAISE SQLSTATE '55P03'; END $$", 503),
    ]:
        try:
            conn.execute(sql)
            raise AssertionError(sql)
        except psycopg.Error as error:
            assert http_status(error) == status, (sql, error)
    sent = conn.execute("SELECT body FROM messages WHERE author = %s", [user]).fetchall()
    assert [message.body for message in sent] == ["one", "two", "three"]

    # 4. Of 1,000 tokens, the first job runs now, the second when there are as many again, and a
    # third would be too much.
    jobs = [conn.execute(SCHEDULE, {"user": user, "estimate": 800}).fetchone() for _ in range(3)]
    due = conn.execute("SELECT id FROM jobs WHERE owner = %s AND run_at <= now()", [user]).fetchall()
    assert due == [jobs[0]] and jobs[1] is not None and jobs[2] is None
    settled = conn.execute(SETTLE, {"job": jobs[0].id, "used": 500}).fetchone()
    assert settled.remaining == 1000 - 800 - 800 + (800 - 500)

    # 5. No connection may fail open. A refused login, which has no SQLSTATE either, must not, and a denial neither.
    def fails_open(conninfo, sql):
        try:
            with psycopg.connect(conninfo, autocommit=True) as other:
                other.execute(sql)
        except psycopg.Error as error:
            return error.sqlstate, may_fail_open(error, conninfo)
        raise AssertionError("it passed")

    call = "SELECT rl_limit('sendMessage', 'open', %s, throws => true)"
    assert fails_open("host=/no/such/socket connect_timeout=5", call % 1) == (None, True)
    assert fails_open("user=nobody connect_timeout=5", call % 1) == (None, False)
    assert fails_open("dbname=none connect_timeout=5", call % 1) == (None, False)
    assert fails_open("connect_timeout=5", call % 4) == ("PT429", False)
    assert fails_open("connect_timeout=5 options='-c statement_timeout=1'", "SELECT pg_sleep(60)") == ("57014", True)
    assert fails_open("connect_timeout=5", "BEGIN READ ONLY; " + call % 1) == ("25006", True)

    # 6. JSON. A number is no period, and a bare call is a text, which is true.
    try:
        conn.execute("SELECT rl_fixed_window(3, %s)", [60])
        raise AssertionError("a number is a period")
    except psycopg.errors.UndefinedFunction:
        pass
    config = Jsonb({"kind": "fixed window", "rate": 3, "period": 60_000})
    assert conn.execute("SELECT ok FROM rl_limit('psycopg', 'a', config => %s)", [config]).fetchone().ok
    requests = Jsonb([{"name": "quota", "key": "psycopg"}])
    assert len(conn.execute("SELECT * FROM rl_limit_all(%s)", [requests]).fetchall()) == 1
    bare = conn.execute("SELECT rl_limit('sendMessage', %s::text) AS result", [user]).fetchone().result
    assert isinstance(bare, str) and bare.startswith("(f,")
