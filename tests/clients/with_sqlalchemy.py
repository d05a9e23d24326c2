"""ratelimit with SQLAlchemy 2 and psycopg, on what setup.sql prepares: in a Session with what the ORM writes, as
text and as an expression, a denial as an error, and 16 threads on one key.

Connects with libpq's variables, as a role that has EXECUTE on rl_limit and rl_check.
"""

import json
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import ForeignKey, Identity, String, create_engine, func, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    name: Mapped[str]


class Message(Base):
    __tablename__ = "messages"
    author: Mapped[int] = mapped_column(ForeignKey(User.id), primary_key=True)
    body: Mapped[str] = mapped_column(String, primary_key=True)


def send_message(session, user, body):
    # In FROM the function runs once. The key is text. func passes arguments by position only.
    limit = func.rl_limit("sendMessage", str(user)).table_valued("ok", "retry_after", "retry_at")
    result = session.execute(select(limit)).one()
    if result.ok:
        session.add(Message(author=user, body=body))
    return result


engine = create_engine("postgresql+psycopg://", pool_size=16)
with Session(engine) as session, session.begin():
    session.add(user := User(name="alan"))
    session.flush()
    user = user.id


def remaining():
    with engine.connect() as connection:
        check = text("SELECT remaining FROM rl_check('sendMessage', :key)")
        return connection.execute(check, {"key": str(user)}).scalar_one()


# 1. The ORM writes an empty message only at the end, where it breaks a constraint: the token is back too.
try:
    with Session(engine) as session, session.begin():
        assert send_message(session, user, "").ok
    raise AssertionError("an empty message was sent")
except IntegrityError as error:
    assert error.orig.sqlstate == "23514"
assert remaining() == 3
# The same for a rollback by hand, and for one to a savepoint.
with Session(engine) as session:
    assert send_message(session, user, "never").ok
    session.rollback()
    with session.begin_nested() as savepoint:
        assert send_message(session, user, "never").ok
        savepoint.rollback()
    session.commit()
assert remaining() == 3

# 2. Three pass, one that comes as text; the fourth is denied, by an ordinary row.
with Session(engine) as session, session.begin():
    take = text("SELECT ok, remaining FROM rl_limit('sendMessage', :key, count => :count)")
    assert session.execute(take, {"key": str(user), "count": 1}).one() == (True, 2)
for body in ["two", "three", "one too many"]:
    with Session(engine) as session, session.begin():
        result = send_message(session, user, body)
assert not result.ok and 80_000 < result.retry_after <= 86_400 and result.retry_at.tzinfo

# 3. The same as an error, which takes the session's write with it and leaves the connection usable.
try:
    with Session(engine) as session, session.begin():
        session.add(Message(author=user, body="one too many"))
        session.flush()
        session.execute(select(func.rl_limit("sendMessage", str(user), 1, False, True)))
    raise AssertionError("it passed")
except DBAPIError as error:
    if error.orig.sqlstate != "PT429":
        raise
    assert not error.connection_invalidated
    assert 80_000_000 < json.loads(error.orig.diag.message_detail)["retryAfter"] <= 86_400_000
with Session(engine) as session:
    sent = select(Message.body).where(Message.author == user).order_by("body")
    assert session.scalars(sent).all() == ["three", "two"]


# 4. Without commit() it takes nothing. A cast and JSON: in text(), :: after a parameter is no cast.
with Session(engine) as session:
    assert session.scalar(text("SELECT ok FROM rl_limit('sendMessage', 'uncommitted')"))
with Session(engine) as session:
    assert session.scalar(text("SELECT remaining FROM rl_check('sendMessage', 'uncommitted')")) == 3
config = json.dumps({"kind": "fixed window", "rate": 3, "period": 60_000})
with Session(engine) as session:
    take = "SELECT ok FROM rl_limit('sqlalchemy', 'a', config => CAST(:config AS jsonb))"
    assert session.scalar(text(take), {"config": config})
    try:
        session.scalar(text("SELECT ok FROM rl_limit('sqlalchemy', 'a', config => :config::jsonb)"), {"config": config})
        raise AssertionError(":config::jsonb is a cast")
    except DBAPIError as error:
        assert error.orig.sqlstate == "42601"

# 5. On psycopg2 the same, but for the SQLSTATE's name.
try:
    with create_engine("postgresql+psycopg2://").connect() as connection:
        connection.execute(select(func.rl_limit("sendMessage", str(user), 1, False, True)))
    raise AssertionError("it passed")
except DBAPIError as error:
    assert error.orig.pgcode == "PT429" and json.loads(error.orig.diag.message_detail)["kind"] == "RateLimited"


# 6. 16 threads on one key, where every third transaction rolls back: 100 pass, and no more.
def take_until_denied(thread):
    take = select(func.rl_limit("quota", "sqlalchemy").table_valued("ok"))
    for turn in range(1_000):
        with Session(engine) as session:
            if not session.scalar(take):
                return turn - turn // 3
            session.rollback() if turn % 3 == 2 else session.commit()


with ThreadPoolExecutor(16) as threads:
    assert sum(threads.map(take_until_denied, range(16))) == 100

# 7. A test of an application is rolled back, and moves the clock: what a Session in it commits is a savepoint.
take = text("SELECT ok FROM rl_limit('sendMessage', 'tests', count => 3)")
for _ in range(2):
    with engine.connect() as connection, connection.begin() as test:

        def taken():
            with Session(bind=connection, join_transaction_mode="create_savepoint") as session, session.begin():
                return session.scalar(take)

        connection.execute(text("SET LOCAL ratelimit.clock = '2027-01-01 12:00:00+00'"))
        assert taken() and not taken()
        connection.execute(text("SET LOCAL ratelimit.clock = '2027-01-02 12:00:00+00'"))
        assert taken()
        test.rollback()
