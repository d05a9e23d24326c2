"""psycopg2's line of docs/clients.md, on what setup.sql prepares. Connects with libpq's variables."""

import datetime
import json

import psycopg2
from psycopg2.extras import Json

connection = psycopg2.connect("")
connection.autocommit = True
cursor = connection.cursor()


def row(sql, *values):
    cursor.execute(sql, values)
    return cursor.fetchone()


def sqlstate(sql, *values):
    try:
        row(sql, *values)
    except psycopg2.Error as error:
        return error.pgcode
    raise AssertionError(f"it passed: {sql}")


# A key, and a denial as a row.
user = 20_001
assert sqlstate("SELECT ok FROM rl_limit('sendMessage', %s)", user) == "42883"
take = "SELECT ok, retry_after FROM rl_limit('sendMessage', %s::text, %s)"
assert row(take, user, 3) == (True, None)
ok, retry_after = row(take, user, 1)
assert ok is False and 80_000 < retry_after <= 86_400

# JSON, and a period.
config = {"kind": "fixed window", "rate": 3, "period": 60_000}
assert row("SELECT ok FROM rl_limit('psycopg2', 'a', config => %s)", Json(config)) == (True,)
assert row("SELECT count(*) FROM rl_limit_all(%s)", Json([{"name": "quota", "key": "psycopg2"}])) == (1,)
assert row("SELECT rl_fixed_window(3, %s)", datetime.timedelta(minutes=1)) == (config,)
assert sqlstate("SELECT rl_fixed_window(3, %s)", 60) == "42883"

# A denial as an error.
try:
    row("SELECT ok FROM rl_limit('sendMessage', %s::text, throws => true)", user)
    raise AssertionError("it passed")
except psycopg2.Error as error:
    assert error.pgcode == "PT429" and not hasattr(error, "sqlstate")
    assert json.loads(error.diag.message_detail)["kind"] == "RateLimited"

# Without commit() it takes nothing. A bare call is a text, which is true.
other = psycopg2.connect("")
other.cursor().execute("SELECT ok FROM rl_limit('sendMessage', 'psycopg2')")
other.close()
assert row("SELECT remaining FROM rl_check('sendMessage', 'psycopg2')") == (3,)
(bare,) = row("SELECT rl_limit('sendMessage', %s::text)", user)
assert isinstance(bare, str) and bare.startswith("(f,")
