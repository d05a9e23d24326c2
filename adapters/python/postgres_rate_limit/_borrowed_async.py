"""Tokens that a process has borrowed: it takes a batch of them in one database call, and spends it in memory."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from postgres_rate_limit._calls import Key, Span, Taken, key_of, seconds_of
from postgres_rate_limit._configs import Config
from postgres_rate_limit._facts import FACTS
from postgres_rate_limit._failing import OnError, checked
from postgres_rate_limit._results import BorrowResult, Result, innermost, log, told
from postgres_rate_limit._waits import Patience, after_fork, spawn_async, wait_for_async

if TYPE_CHECKING:
    from typing_extensions import Self

# The kinds that can be borrowed: tokens can be given back to them.
_LENDS = FACTS["lends"]
Left = tuple[str, float, datetime]
"""A key, the rest of its batch, and the time when that was taken."""


@dataclass(slots=True)
class _Batch:
    taken: float
    left: float
    sent: tuple[float, float]
    """The time of the request, by the monotonic clock, which stops on a suspended machine, and by the other."""
    lasts: float
    taken_at: datetime | None
    """None: taken without a limit, so nothing is returned."""

    def passed(self) -> float:
        return max(time.monotonic() - self.sent[0], time.time() - self.sent[1])


@dataclass(slots=True)
class _Account:
    """The tokens of a key."""

    asking: asyncio.Lock
    """By it the account's database calls take turns."""
    batch: _Batch | None = None
    size: int = 0
    """Tokens of the next batch, to last between half and all of its time. 0: unknown."""
    users: int = 0
    """Calls that wait for another, or ask."""
    awaited: float = 0.0
    """The tokens of those that wait for another."""
    asked: int = 0
    """The number of database calls."""
    last: tuple[float, Taken | Exception] | None = None
    """The count and the answer of the last of them."""

    def spends(self, count: float) -> bool:
        """Spends from the batch; false: it has too few tokens, or has ended."""
        batch = self.batch
        if batch is None or not 0 <= count <= batch.left or batch.passed() >= batch.lasts:
            return False
        batch.left -= count
        return True


class AsyncBorrowed:
    """Takes tokens of one limit, usually without a database call. Tasks of one event loop may share it. `async with`
    closes it."""

    def __init__(
        self, limiter: Any, name: str, borrow_for: Span, max: int, config: Config | None, on_error: OnError | None
    ) -> None:
        self._borrow_for, self._max = seconds_of(borrow_for), max
        if not 0.001 <= self._borrow_for <= 60:
            raise ValueError(f"borrow_for is {borrow_for!r}; allowed: 0.001 to 60 seconds")
        if not isinstance(max, int) or max < 1:
            raise ValueError(f"max is {max!r}; allowed: an int from 1 on")
        kind = limiter._calls.kind(name, config)
        if kind not in (None, *_LENDS):
            raise ValueError(f"{kind} can't be borrowed; allowed: {', '.join(_LENDS)}")
        self._limiter, self._name, self._config = limiter, name, config
        self._on_error: OnError | None = None if on_error is None else checked(on_error)
        self._closed = False
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        # Held only for the moments in which accounts change.
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}
        self._sweeps = False
        self._ends = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    def take(self, key: Key = "", *, count: float = 1) -> bool:
        """Spends borrowed tokens, without a database call; returns False if there are too few: then call limit."""
        with self._lock:
            account = self._accounts.get(key_of(key))
            return account is not None and account.spends(count)

    async def limit(
        self, key: Key = "", *, count: float = 1, wait: timedelta | float | None = None, throws: bool = False
    ) -> BorrowResult:
        """Spends borrowed tokens, or else takes a new batch. wait, throws: as in AsyncRateLimiter.limit."""
        text = key_of(key)
        patience = None if wait is None else Patience(wait)
        while True:
            result = await self._once(text, count)
            pause = None if patience is None else patience.pause(result.ok, result.retry_after)
            if pause is None:
                told(result, throws, self._name)
                return BorrowResult(
                    result.ok, result.retry_after, result.retry_at, result.limited_by, result.headers, result.error
                )
            await asyncio.sleep(pause)

    async def _once(self, key: str, count: float) -> Result:
        if not 0 <= count < math.inf:
            raise ValueError(f"count is {count!r}; allowed: a number from 0 on")
        left: list[Left] = []
        with self._lock:
            self._check_open()
            account = self._accounts.get(key)
            if account is None:
                account = self._accounts[key] = _Account(asyncio.Lock())
            if account.spends(count):
                return Result(True)
            seen = account.asked
            account.users += 1
            account.awaited += count
        try:
            try:
                await account.asking.acquire()
            finally:
                with self._lock:
                    account.awaited -= count
            try:
                known = self._known(account, count, seen)
                return await self._ask(key, account, count, left) if known is None else known
            finally:
                account.asking.release()
        finally:
            with self._lock:
                account.users -= 1
                begins, self._sweeps = not self._sweeps, True
            if begins:
                self._sweeper = spawn_async(self._sweeping)
            await self._give_back(left)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the borrowed tokens were returned by close()")

    def _known(self, account: _Account, count: float, seen: int) -> Result | None:
        """The answer to a call that has waited, if there is one: from the batch, or the same as for the call that it
        waited for. None: ask."""
        with self._lock:
            self._check_open()
            if account.asked != seen and account.last is not None:
                asked, answer = account.last
                if isinstance(answer, Exception):
                    raise answer
                if answer.error is not None or not answer.ok and asked <= count:
                    return answer
            return Result(True) if account.spends(count) else None

    async def _ask(self, key: str, account: _Account, count: float, left: list[Left]) -> Result:
        """Asks for the tokens missing for the count, and for a batch. Adds the rest of the one before to those left."""
        with self._lock:
            batch, had = account.batch, 0.0
            sent = time.monotonic(), time.time()
            if batch is not None and (passed := batch.passed()) < batch.lasts:
                if passed < batch.lasts / 2:
                    account.size = min(account.size * 2, self._max)
                had = min(batch.left, count)
                batch.left -= had
            else:
                self._end(key, account, left)
            least = count - had
            wanted = max(account.size, least + account.awaited) if account.size > 0 else 0
            most = max(least, min(wanted, self._max))
        await self._give_back(left)  # the call may need it
        answer: Taken | BaseException
        try:
            calls = self._limiter._calls
            call = calls.take(calls.of(self._name, key, self._config), least, most)
            answer = await self._limiter._run_apart(call, self._on_error)
        except BaseException as error:
            answer = error
        with self._lock:
            if account.batch is not None and not (isinstance(answer, Taken) and answer.ok):
                account.batch.left += had
            if isinstance(answer, (Taken, Exception)):
                account.asked += 1
                account.last = count, answer
            if isinstance(answer, BaseException):
                raise answer
            if answer.error is not None or not answer.ok:
                return answer
            self._end(key, account, left)
            account.batch = batch = self._batch(answer, least, sent)
            size = account.size // 2 if batch.taken < most else account.size  # others want them, too
            account.size = max(size, 1) if batch.lasts > 0 else 0
            return Result(True, limited_by=answer.limited_by)

    def _batch(self, answer: Taken, spent: float, sent: tuple[float, float]) -> _Batch:
        taken, value = answer.held or 0.0, json.loads(answer.value or "null")
        config, now = value["config"], datetime.fromtimestamp(value["now"] / 1000, timezone.utc)
        lasts = 0.0
        # The rest is useless if it can't be returned; a dry run has more tokens than there were to take.
        if config.get("enforce") is not False and config["kind"] in ("token bucket", "unlimited"):
            lasts = self._borrow_for
        elif config.get("enforce") is not False and config["kind"] == "fixed window" and answer.reset_at is not None:
            lasts = min(self._borrow_for, answer.reset_at.timestamp() - value["now"] / 1000)
        return _Batch(taken, taken - spent, sent, lasts, None if config["kind"] == "unlimited" else now)

    def _end(self, key: str, account: _Account, left: list[Left]) -> None:
        """Ends a batch, and adds the rest to the tokens to return."""
        batch, account.batch = account.batch, None
        if batch is not None and batch.left > 0 and batch.lasts > 0:
            account.size = max(int(batch.taken - batch.left), 1)
            if batch.taken_at is not None:
                left.append((key, batch.left, batch.taken_at))

    def _sweep(self, every: bool = False) -> list[Left] | None:
        """Ends the batches with their time up, or all batches with every, and forgets their keys. None: no keys are
        left."""
        left: list[Left] = []
        with self._lock:
            for key, account in list(self._accounts.items()):
                if every or account.users == 0:
                    if every or account.batch is None:
                        self._end(key, account, left)
                        del self._accounts[key]
                    elif account.batch.passed() >= account.batch.lasts:
                        self._end(key, account, left)
            if not self._accounts and not left:
                self._sweeps = False
                return None
            return left

    async def _sweeping(self) -> None:
        while not await wait_for_async(self._ends, self._borrow_for):
            left = self._sweep()
            if left is None:
                return
            await self._give_back(left)

    async def _give_back(self, left: list[Left]) -> None:
        while left:
            try:
                key, count, taken_at = left.pop()
                calls = self._limiter._calls
                call = calls.credit(calls.of(self._name, key, self._config), count, taken_at)
                await self._limiter._run_apart(call, None)
            except Exception as error:
                log.warning("borrowed tokens were not returned: %r", innermost(error))

    async def close(self) -> None:
        """Returns all tokens that are left, and spends no more. Without it, for example if the process dies, they stay
        taken."""
        with self._lock:
            self._closed = True
            accounts = list(self._accounts.values())
        for account in accounts:
            async with account.asking:
                pass
        self._ends.set()
        await self._give_back(self._sweep(every=True) or [])
        if self._sweeper is not None:
            await asyncio.wait([self._sweeper])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


# A forked child has none of its parent's tokens.
_all: WeakSet[AsyncBorrowed] = WeakSet()
after_fork(_all, AsyncBorrowed._begin)
