"""The ways in which the two kinds of client wait, and which differ. Names of the asynchronous kind end in _async, or
begin with Async."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from datetime import timedelta
from random import uniform
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from postgres_rate_limit._calls import seconds_of

E = TypeVar("E", bound=AbstractAsyncContextManager[Any])
T = TypeVar("T")

Event = threading.Event
AsyncEvent = asyncio.Event


def wait_for(event: threading.Event, seconds: float) -> bool:
    """Whether it is set by then."""
    return event.wait(min(seconds, threading.TIMEOUT_MAX))


async def wait_for_async(event: asyncio.Event, seconds: float) -> bool:
    task = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([task], timeout=min(seconds, threading.TIMEOUT_MAX))
    finally:
        with suppress(RuntimeError):  # the loop is closed
            task.cancel()
    return event.is_set()


def spawn(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def spawn_async(run: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    return asyncio.ensure_future(run())


def after_fork(of: WeakSet[T], run: Callable[[T], None]) -> None:
    """Runs it in each forked child, for each of them."""

    def run_each() -> None:
        for each in list(of):
            run(each)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=run_each)


class Lines:
    """Lines of a process's calls that wait for the same slots: the first of each asks for all. Threads may share it.
    make: an event, of threads or of the tasks of a loop."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lines: dict[Hashable, list[Any]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def place(self, id: Hashable) -> Iterator[Any]:
        """A place in the line: an event, set when those before it have left."""
        place = self._make()
        with self._lock:
            line = self._lines.setdefault(id, [])
            line.append(place)
            line[0].set()
        try:
            yield place
        finally:
            with self._lock:
                line.remove(place)
                if line:
                    line[0].set()
                else:
                    del self._lines[id]


# The seconds after which a caller that waits for slots checks again.
_LOOK = 0.25


class Patience:
    """The time for which a denied call may keep trying."""

    def __init__(self, wait: timedelta | float) -> None:
        self._end = time.monotonic() + seconds_of(wait)

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def pause(self, ok: bool, retry_after: float | None, looks: bool = False) -> float | None:
        """The seconds to wait, some of them random, because others may wait for the same key; None: no more. looks:
        the call may pass sooner."""
        left = self.left
        if looks and retry_after is not None and left > 0:
            retry_after = min(retry_after, _LOOK, left)
        if ok or retry_after is None or retry_after > left:
            return None
        return retry_after + uniform(0, min(retry_after / 10 + 0.01, left - retry_after))


class Pending(Generic[E]):
    """A call to await, or to enter by `async with`."""

    def __init__(self, start: Callable[[], Awaitable[E]]) -> None:
        self._start = start
        self._entered: list[E] = []

    def __bool__(self) -> bool:
        raise TypeError("the call isn't awaited; allowed: if await limiter.acquire(…), or async with")

    def __await__(self) -> Generator[Any, None, E]:
        return self._start().__await__()

    async def __aenter__(self) -> E:
        self._entered.append(await self._start())
        await self._entered[-1].__aenter__()
        return self._entered[-1]

    async def __aexit__(self, *ended: Any) -> None:
        await self._entered.pop().__aexit__(*ended)
