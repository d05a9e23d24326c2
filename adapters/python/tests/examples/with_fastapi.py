"""A limit for each address of callers in FastAPI, which docs/python.md shows. test_examples.py runs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from fastapi import Depends, FastAPI, HTTPException, Request, Response

from postgres_rate_limit import MINUTE, AsyncRateLimiter, address_key, token_bucket, too_many_requests

limiter = AsyncRateLimiter({"search": token_bucket(30, MINUTE, keyed=True)})


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool() as app.state.pool:
        yield


def limited(name: str, count: float = 1) -> Any:
    """A dependency that answers 429 if the caller's address has no token left."""

    async def take(request: Request, response: Response) -> None:
        if request.client is None:  # behind a unix socket: start uvicorn with --forwarded-allow-ips
            raise HTTPException(500, "the caller has no address")
        address = address_key(request.client.host)
        pool = request.app.state.pool
        result = await limiter.limit(name, address, count=count, headers="ietf", db=pool)
        if not result.ok:
            raise HTTPException(**too_many_requests(result))
        response.headers.update(result.headers)

    return Depends(take)


app = FastAPI(lifespan=lifespan)


@app.get("/search", dependencies=[limited("search")])
async def search() -> str:
    return "found"
