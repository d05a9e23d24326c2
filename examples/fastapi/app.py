"""A shop with limits: logins, sign-ups, an API by plan, and an administrator's pages. docs/fastapi.md goes through it.

Environment: libpq's variables (PGHOST, PGUSER, …), and PROXIES, the addresses whose X-Forwarded-For is believed;
SECRET, which signs the cookies of those who have logged in.
"""

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from html import escape
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from pydantic import BaseModel, StringConstraints
from sqlalchemy import Identity, delete, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.middleware.sessions import SessionMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from postgres_rate_limit import AsyncRateLimiter, RateLimitExceeded, address_key, too_many_requests, try_again

engine = create_async_engine("postgresql+asyncpg://")
sessions = async_sessionmaker(engine, expire_on_commit=False)
# setup.sql defines them.
limiter = AsyncRateLimiter(["loginByAccount", "loginByAddress", "signUpByAddress", "signUps", "api"], defined=True)


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    email: Mapped[str]
    password: Mapped[bytes]
    admin: Mapped[bool] = mapped_column(default=False)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # Rows of keys that are full again, such as addresses that never came back.
    pruning = asyncio.create_task(limiter.prune_every(60, db=engine))
    yield
    pruning.cancel()
    await engine.dispose()


app = FastAPI(lifespan=lifespan)
app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=os.environ.get("PROXIES", "127.0.0.1"))
app.add_middleware(SessionMiddleware, secret_key=os.environ["SECRET"], https_only=True, same_site="strict")


@app.exception_handler(RateLimitExceeded)
async def denied(request: Request, error: RateLimitExceeded) -> Response:
    return PlainTextResponse(f"Too many requests: {try_again(error)}\n", **too_many_requests(error))


def address_of(request: Request) -> str:
    """The key of the caller's address, which the middleware took from the header if a proxy of ours sent it."""
    return address_key(request.client.host if request.client else "")  # without an address an error


async def user_of(request: Request) -> User:
    async with sessions() as session:
        user = await session.get(User, request.session.get("user", 0))
    if user is None:
        raise HTTPException(401)
    return user


Address = Annotated[str, Depends(address_of)]
CurrentUser = Annotated[User, Depends(user_of)]


async def admin_of(user: CurrentUser) -> None:
    if not user.admin:
        raise HTTPException(403)


class Credentials(BaseModel):
    # The key of an account, so in one form: "Ada@example.com" has no guesses of its own.
    email: Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True, min_length=3, max_length=200)]
    password: Annotated[str, StringConstraints(min_length=8, max_length=200)]


async def scrypt(password: str, salt: bytes) -> bytes:
    return salt + await asyncio.to_thread(hashlib.scrypt, password.encode(), salt=salt, n=2**14, r=8, p=1)


@app.post("/users", status_code=201)
async def sign_up(new: Credentials, address: Address) -> None:
    password = await scrypt(new.password, secrets.token_bytes(16))
    try:
        async with sessions.begin() as session:
            session.add(User(email=new.email, password=password))
            await session.flush()
            # Limit: in the transaction of the INSERT. If that fails, as for an e-mail that is taken, it costs no token.
            await limiter.limit_all(
                [{"name": "signUpByAddress", "key": address}, {"name": "signUps"}], throws=True, db=session
            )
    except IntegrityError:
        raise HTTPException(409, "there is an account of this e-mail") from None


@app.post("/login")
async def log_in(given: Credentials, address: Address, request: Request) -> None:
    # Limit: committed before the password is checked, since a rollback would return the tokens.
    async with sessions.begin() as session:
        await limiter.limit_all(
            [{"name": "loginByAccount", "key": given.email}, {"name": "loginByAddress", "key": address}],
            headers="ietf",
            throws=True,
            db=session,
        )
        user = await session.scalar(select(User).where(User.email == given.email))
    # The same work for an account that doesn't exist.
    known = user.password if user else bytes(80)
    if not secrets.compare_digest(await scrypt(given.password, known[:16]), known) or user is None:
        raise HTTPException(401, "the account or its password is wrong")
    async with sessions.begin() as session:
        # Limit: the account is full again. The address gets only this attempt back, or a guesser with one good
        # account could log in to it between guesses.
        await limiter.reset("loginByAccount", given.email, db=session)
        await limiter.credit("loginByAddress", address, db=session)
    request.session["user"] = user.id


@app.get("/api/prices")
async def prices(user: CurrentUser, response: Response) -> dict[str, int]:
    async with sessions.begin() as session:
        # Limit: by the user's plan, of which the application knows nothing here.
        result = await limiter.limit("api", user.email, headers="ietf", throws=True, db=session)
    response.headers.update(result.headers)
    return {"pen": 2, "ink": 5}


@app.put("/plan/{plan}", status_code=204)
async def subscribe(plan: Literal["free", "pro"], user: CurrentUser) -> None:
    async with sessions.begin() as session:  # and here the payment
        await session.execute(select(func.set_plan(user.email, plan)))


PAGE = """<!doctype html><title>{account}</title><h1>{account}</h1>
<table><tr><th>limit<th>left<th>limited by<th>until<th>reason{rows}</table>
<form method="post">{buttons}</form>"""
BUTTON = '<button formaction="/admin/{0}?{1}">{0}</button>'
admin = APIRouter(prefix="/admin", dependencies=[Depends(admin_of)])


@admin.get("", response_class=HTMLResponse)
async def look(account: str) -> str:
    async with sessions() as session:
        found = (await session.execute(text("SELECT * FROM rl_status(key => :key)"), {"key": account})).all()
    cells = [(s.name, f"{s.remaining:g}", s.limited_by or "", s.retry_at or "", s.block_reason or "") for s in found]
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(str(cell))}" for cell in row) for row in cells)
    query = escape(urlencode({"account": account}))
    buttons = "".join(BUTTON.format(action, query) for action in ("block", "unblock", "erase"))
    return PAGE.format(account=escape(account), rows=rows, buttons=buttons)


@admin.post("/{action}")
async def act(action: Literal["block", "unblock", "erase"], account: str) -> Response:
    async with sessions.begin() as session:
        if action == "block":
            await session.execute(select(func.rl_block("loginByAccount", account, timedelta(days=1), None, "by hand")))
        elif action == "unblock":
            await session.execute(select(func.rl_unblock("loginByAccount", account)))
            await limiter.reset("loginByAccount", account, db=session)  # forgets the guesses, too
        else:
            await session.execute(select(func.rl_forget(account)))  # in all limits
            await session.execute(delete(User).where(User.email == account))
    return RedirectResponse("/admin?" + urlencode({"account": account}), 303)


app.include_router(admin)
