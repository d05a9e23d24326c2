"""Django's line of docs/clients.md, with psycopg 3, on what setup.sql prepares. Connects with libpq's variables."""

import json
import os
import unittest

import django
from django.conf import settings
from django.db import Error, connection, models, transaction
from django.db.models import Func, Value
from django.test import TestCase

database = {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"]}
database |= {"HOST": os.environ["PGHOST"], "PORT": os.environ["PGPORT"], "USER": os.environ["PGUSER"]}
settings.configure(DATABASES={"default": database})
django.setup()


class User(models.Model):
    id = models.BigAutoField(primary_key=True)
    name = models.TextField()

    class Meta:
        app_label, db_table, managed = "clients", "users", False


def row(sql, *values):
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchone()


def fails(sql, *values):
    try:
        with transaction.atomic():
            row(sql, *values)
    except Error as error:
        return error
    raise AssertionError(f"it passed: {sql}")


# A key, and a denial as a row.
user = row("INSERT INTO users (name) VALUES ('adrian') RETURNING id")[0]
assert fails("SELECT ok FROM rl_limit('sendMessage', %s)", user).__cause__.sqlstate == "42883"
take = "SELECT ok, retry_after FROM rl_limit('sendMessage', %s::text, %s)"
assert row(take, user, 3) == (True, None)
ok, retry_after = row(take, user, 1)
assert ok is False and 80_000 < retry_after <= 86_400

# JSON.
config = {"kind": "fixed window", "rate": 3, "period": 60_000}
assert row("SELECT ok FROM rl_limit('django', 'a', config => %s::jsonb)", json.dumps(config)) == (True,)
requests = [{"name": "quota", "key": "django"}]
assert row("SELECT count(*) FROM rl_limit_all(%s::jsonb)", json.dumps(requests)) == (1,)

# A denial as an error.
error = fails("SELECT ok FROM rl_limit('sendMessage', %s::text, throws => true)", user)
assert error.__cause__.sqlstate == "PT429" and not hasattr(error, "sqlstate")
assert json.loads(error.__cause__.diag.message_detail)["kind"] == "RateLimited"

# atomic() returns the token.
try:
    with transaction.atomic():
        assert row("SELECT ok FROM rl_limit('sendMessage', 'django')") == (True,)
        raise KeyError
except KeyError:
    assert row("SELECT remaining FROM rl_check('sendMessage', 'django')") == (3,)

# Func ignores count=: it takes 1. And it is a bare call, a text.
call = Func(Value("sendMessage"), Value("func"), count=2, function="rl_limit", output_field=models.TextField())
(bare,) = User.objects.filter(id=user).annotate(limit=call).values_list("limit", flat=True)
assert isinstance(bare, str) and bare.startswith("(t,")
assert row("SELECT remaining FROM rl_check('sendMessage', 'func')") == (2,)


# A TestCase is rolled back, and moves the clock: atomic() in it is a savepoint.
class Tests(TestCase):
    def setUp(self):
        self.set_clock("2027-01-01 12:00:00+00")

    def set_clock(self, time):
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL ratelimit.clock = %s", [time])

    def taken(self):
        with transaction.atomic():
            return row("SELECT ok FROM rl_limit('sendMessage', 'tests', count => 3)")[0]

    def test_a_day_later(self):
        assert self.taken() and not self.taken()
        self.set_clock("2027-01-02 12:00:00+00")
        assert self.taken()

    test_it_is_rolled_back = test_a_day_later


suite = unittest.defaultTestLoader.loadTestsFromTestCase(Tests)
assert suite.countTestCases() == 2 and unittest.TextTestRunner().run(suite).wasSuccessful()
