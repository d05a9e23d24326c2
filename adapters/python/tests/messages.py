"""Ten messages a minute for each user, and the tests of it, which docs/testing.md shows. test_testing.py runs them."""

# What the application does, on a connection that it is given.


def send(connection, user, body):
    """Sends a message, or returns the seconds to wait."""
    with connection.transaction():
        take = "SELECT ok, retry_after FROM rl_limit('sendMessage', %s)"
        ok, wait = connection.execute(take, [user]).fetchone()
        if ok:
            connection.execute("INSERT INTO messages VALUES (%s, %s)", [user, body])
        return None if ok else wait


# Its tests.

pytest_plugins = ["postgres_rate_limit.testing"]


def test_ten_messages_a_minute(ratelimit_connection, ratelimit_clock):
    for _ in range(10):
        assert send(ratelimit_connection, "ada", "hello") is None
    assert send(ratelimit_connection, "ada", "hello") == 6
    ratelimit_clock.advance(seconds=6)
    assert send(ratelimit_connection, "ada", "hello") is None


def test_users_do_not_wait_for_each_other(ratelimit_connection):
    for _ in range(10):
        send(ratelimit_connection, "ada", "hello")
    assert send(ratelimit_connection, "ben", "hello") is None


def test_a_message_is_kept(ratelimit_connection):
    send(ratelimit_connection, "ada", "hello")
    messages = ratelimit_connection.execute("SELECT * FROM messages").fetchall()
    assert messages == [("ada", "hello")]
