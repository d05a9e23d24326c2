"""Messages with a limit for each user, in a Session and an AsyncSession. test_examples.py runs it."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from postgres_rate_limit import MINUTE, AsyncRateLimiter, RateLimiter, token_bucket

LIMITS = {"sendMessage": token_bucket(10, MINUTE, capacity=3)}
limiter = RateLimiter(LIMITS)
async_limiter = AsyncRateLimiter(LIMITS)


class Base(DeclarativeBase):
    pass


class Message(Base):
    __tablename__ = "messages"
    id: Mapped[int] = mapped_column(primary_key=True)
    author: Mapped[str]
    body: Mapped[str]


def send_message(session: Session, user: str, body: str) -> bool:
    if limiter.limit("sendMessage", user, db=session):
        session.add(Message(author=user, body=body))
        return True
    return False


async def send_message_async(session: AsyncSession, user: str, body: str) -> bool:
    if await async_limiter.limit("sendMessage", user, db=session):
        session.add(Message(author=user, body=body))
        return True
    return False
