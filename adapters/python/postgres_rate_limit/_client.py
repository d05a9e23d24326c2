"""The clients, synchronous and asynchronous. What they send is in _calls, and how in _databases."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from datetime import datetime, timedelta
from random import uniform
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, Union

from postgres_rate_limit._calls import FIND, Call, Calls, HeaderStyle, Held, HeldAll, Key, Lent, Request, seconds_of
from postgres_rate_limit._configs import Config
from postgres_rate_limit._databases import AsyncDatabase, Database, async_database, database
from postgres_rate_limit._results import (
    Decision,
    LimitResult,
    RateLimitExceeded,
    Result,
    Results,
    SettledLimit,
    Value,
    denied_by,
    innermost,
)

if TYPE_CHECKING:
    # Which type checkers have, and Python before 3.13 hasn't.
    from typing_extensions import TypeVar as TypeVarWithDefault

    N = TypeVarWithDefault("N", bound=str, default=str)
else:
    N = TypeVar("N", bound=str)
T = TypeVar("T")
Taken = TypeVar("Taken", Result, Held)
E = TypeVar("E", bound="_Block")
OnExpiry = Literal["refund", "charge"]
Used = Union[float, Mapping[str, float]]
TEN_MINUTES = timedelta(minutes=10)
log = logging.getLogger("postgres_rate_limit")


class _Limiter(Generic[N]):
    """What both clients have."""

    def __init__(
        self,
        limits: Mapping[N, Config] | Iterable[N],
        *,
        db: object = None,
        defined: bool = False,
        schema: str | None = None,
        on_decision: Callable[[Decision], object] | None = None,
    ) -> None:
        """
        limits: each by its name, as token_bucket and the other builders make it.
        db: where calls run that aren't given another.
        defined: calls send names only, since the limits are defined in the database: by define(), or sql() in a
            migration. Then limits may be the names alone.
        schema: of the functions; by default it is found at the first call.
        on_decision: is called for each limit that a call takes from or is denied by, or that it fails on. What it
            raises is logged and goes no further.
        """
        self._calls = Calls(limits, defined, schema)
        self._db, self._on_decision = db, on_decision

    @property
    def names(self) -> tuple[str, ...]:
        return self._calls.names

    def sql(self) -> str:
        """The statements that define the limits, for a migration. With defined=True."""
        return self._calls.sql()

    def _where(self, db: object) -> object:
        return self._db if db is None else db

    def _tell(self, call: Call[T], result: T | None, began: float, error: BaseException | None) -> None:
        if self._on_decision is None or call.decides is None:
            return
        seconds = time.perf_counter() - began
        told = (
            [(name, None, None) for name in call.names] if error is not None or result is None else call.decides(result)
        )
        for name, ok, retry_after in told:
            try:
                self._on_decision(Decision(name, ok, retry_after, seconds, error and innermost(error)))
            except Exception as failure:
                _forget(failure, error)
                log.exception("on_decision failed", exc_info=failure)

    def _failed(self, call: Call[Any], error: BaseException, began: float) -> None:
        """Raises the error in the words of the client, if it has any for it."""
        self._tell(call, None, began, error)
        explained = self._calls.explain(error, call.names[0] if len(call.names) == 1 else None)
        if explained:
            raise explained from error

    @staticmethod
    def _refuse_wait(in_transaction: bool, reserve: bool) -> None:
        if reserve:
            raise ValueError("wait and reserve are both given; allowed: one, since a reservation says when to start")
        if in_transaction:
            raise RuntimeError(
                "wait is given in a transaction, which would keep its locks meanwhile; allowed: a pool or an engine as "
                "db"
            )


def _forget(failure: BaseException, error: BaseException | None) -> None:
    """Cuts off the error that was handled when the failure happened: it may show the parameters of a call."""
    while failure.__context__ is not None:
        if failure.__context__ is error:
            failure.__context__ = None
            return
        failure = failure.__context__


class _Patience:
    """How long a call that is denied may go on trying."""

    def __init__(self, wait: timedelta | float) -> None:
        self._end = time.monotonic() + seconds_of(wait)

    def pause(self, ok: bool, retry_after: float | None) -> float | None:
        """The seconds to wait, some of them random, since others may wait for the same key; None: no more."""
        left = self._end - time.monotonic()
        if ok or retry_after is None or retry_after > left:
            return None
        return retry_after + uniform(0, min(retry_after / 10 + 0.01, left - retry_after))


class _Lent:
    """A lease of a concurrency limit. It is true if the slots were taken."""

    def __init__(self, name: str, lent: Lent) -> None:
        self.name = name
        self.ok = lent.ok
        self.id = lent.lease
        """None if the lease was denied, or the key is exempt."""
        self.expires_at = lent.expires_at
        self.retry_after, self.retry_at = lent.retry_after, lent.retry_at
        self.remaining, self.capacity = lent.remaining, lent.capacity
        self._ended = lent.lease is None

    def __bool__(self) -> bool:
        return self.ok

    def _entered(self) -> None:
        if not self.ok:
            raise RateLimitExceeded(self.name, self.retry_after, self.retry_at)


class _Held:
    """Tokens of a limit that are held for work whose use isn't known yet. It is true if they are held."""

    def __init__(self, name: str, held: Held, on_error: OnExpiry) -> None:
        self.name = name
        self.ok = held.ok
        self.id = held.hold
        """None if the hold was denied, or the key is exempt."""
        self.held = held.held
        self.expires_at = held.expires_at
        self.retry_after, self.retry_at = held.retry_after, held.retry_at
        self.remaining, self.capacity, self.reset_at = held.remaining, held.capacity, held.reset_at
        self.used: float | None = None
        """What the end of the block settles, if settle hasn't: set it to what was used, or has been used so far."""
        self._on_error, self._ended = on_error, held.hold is None

    def __bool__(self) -> bool:
        return self.ok

    def _entered(self) -> None:
        if not self.ok:
            raise RateLimitExceeded(self.name, self.retry_after, self.retry_at)

    def _used_at_end(self, failed: bool) -> float | None:
        if self.used is None and failed and self._on_error == "refund":
            return 0
        return self.used

    def _extended(self, held: Held) -> bool:
        if held.ok:
            self.held, self.expires_at = held.held, held.expires_at
        return held.ok


class _HeldAll:
    """Tokens of several limits, held together. It is true if all are held."""

    def __init__(self, held: HeldAll, on_error: OnExpiry) -> None:
        self.ok = held.ok
        self.id = held.hold
        """None if the hold was denied, or all keys are exempt."""
        self.expires_at = held.expires_at
        self.limits = held.limits
        self.held = held.held
        """The tokens held of each limit, in the order of limits."""
        self.used: Used | None = None
        """What the end of the block settles, if settle hasn't: by the limit's name, or a number for all."""
        self._on_error, self._ended = on_error, held.hold is None

    def __bool__(self) -> bool:
        return self.ok

    @property
    def denied_by(self) -> LimitResult | None:
        """The limit that denies with the longest wait; None if the tokens are held."""
        return denied_by(self.ok, self.limits)

    def _entered(self) -> None:
        if limit := self.denied_by:
            raise RateLimitExceeded(limit.name, limit.retry_after, limit.retry_at)
        if not self.ok:
            raise RateLimitExceeded("")

    def _used_at_end(self, failed: bool) -> Used | None:
        if self.used is None and failed and self._on_error == "refund":
            return 0
        return self.used


# Synchronous.


class Lease(_Lent):
    """Slots of a concurrency limit. `with` raises RateLimitExceeded if they weren't taken; its end releases them."""

    def __init__(self, limiter: RateLimiter[Any], name: str, lent: Lent, config: Config | None, db: object) -> None:
        super().__init__(name, lent)
        self._limiter, self._config, self._db = limiter, config, db

    def extend(self) -> bool:
        """Extends the lease to its full ttl from now; false if it has ended."""
        if self.id is None:
            return self.ok
        expires_at = self._limiter.extend(self.name, self.id, config=self._config, db=self._db)
        self.expires_at = expires_at or self.expires_at
        return expires_at is not None

    def release(self) -> bool:
        """Frees the slots; false if the lease has ended."""
        if self._ended:
            return False
        released = self._limiter.release(self.name, self.id, config=self._config, db=self._db)
        self._ended = True
        return released

    def __enter__(self) -> Lease:
        self._entered()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(error, self.release)


class Hold(_Held):
    """Tokens that are held. `with` raises RateLimitExceeded if they aren't, and settles at its end if settle hasn't:
    what .used says or else all that was held; after an exception nothing, unless .used or on_error says otherwise."""

    def __init__(
        self,
        limiter: RateLimiter[Any],
        name: str,
        held: Held,
        again: Callable[[float | None, str], Call[Held]],
        on_error: OnExpiry,
        db: object,
    ) -> None:
        super().__init__(name, held, on_error)
        self._limiter, self._again, self._db = limiter, again, db

    def settle(self, used: float | None = None, *, db: object = None) -> Result | None:
        """Gives back what wasn't used, or takes what was used beyond; without used, all was used. db: that of the
        transaction that stores the answer. None if there is nothing to settle, as for an exempt key; the result isn't
        ok if the hold has been settled, or is gone."""
        if self._ended:
            return None
        result = self._limiter.settle(self.id, used, db=self._db if db is None else db)
        self._ended = True
        return result

    def extend(self, count: float | None = None) -> bool:
        """Holds up to count, if that is more, and for ttl from now. Denied, it keeps what it has, and returns false."""
        if self.id is None:
            return self.ok
        return self._extended(self._limiter._run(self._again(count, self.id), self._db))

    def __enter__(self) -> Hold:
        self._entered()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(error, lambda: self.settle(self._used_at_end(error is not None)))


class HoldAll(_HeldAll):
    """Tokens of several limits that are held. `with` does what that of Hold does."""

    def __init__(self, limiter: RateLimiter[Any], held: HeldAll, on_error: OnExpiry, db: object) -> None:
        super().__init__(held, on_error)
        self._limiter, self._db = limiter, db

    def settle(self, used: Used | None = None, *, db: object = None) -> list[SettledLimit]:
        """As that of Hold; used by the limit's name, or a number for all; a limit that isn't named has used all. An
        empty list if there is nothing to settle."""
        if self._ended:
            return []
        settled = self._limiter.settle_all(self.id, used, db=self._db if db is None else db)
        self._ended = True
        return settled

    def __enter__(self) -> HoldAll:
        self._entered()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(error, lambda: self.settle(self._used_at_end(error is not None)))


def _end(error: BaseException | None, ends: Callable[[], object]) -> None:
    """Ends a block. After an exception, that one goes on, whatever else fails."""
    try:
        ends()
    except Exception as other:
        if error is None:
            raise
        log.warning("the end of a block failed, after an exception in it: %r", innermost(other))


class RateLimiter(_Limiter[N]):
    """Limits that are counted in PostgreSQL, in the caller's own transaction if it passes its connection. Threads may
    share it. RateLimiter[Literal["a", "b"]] lets type checkers refuse other names."""

    def limit(
        self,
        name: N,
        key: Key = "",
        *,
        count: float = 1,
        reserve: bool = False,
        wait: timedelta | float | None = None,
        throws: bool = False,
        headers: HeaderStyle | None = None,
        config: Config | None = None,
        db: object = None,
    ) -> Result:
        """Takes tokens, if there are enough.

        reserve: the call may put the limit into debt; retry_at is when to start the work.
        wait: seconds for which a denied call waits and tries again, if it can pass by then. Not in a transaction.
        throws: a denial raises RateLimitExceeded, here and not in the database, so it aborts no transaction.
        headers: the result has them, by rl_headers, on which the role needs EXECUTE.
        config: of a limit that the limiter doesn't have.
        db: instead of the limiter's.
        """
        call = self._calls.limit("rl_limit", name, key, count, reserve, headers, config)
        result = self._patiently(call, db, wait, reserve)
        if throws and not result.ok:
            raise RateLimitExceeded(name, result.retry_after, result.retry_at, result.headers)
        return result

    def check(
        self,
        name: N,
        key: Key = "",
        *,
        count: float = 1,
        reserve: bool = False,
        headers: HeaderStyle | None = None,
        config: Config | None = None,
        db: object = None,
    ) -> Result:
        """What limit would do, which takes nothing."""
        return self._run(self._calls.limit("rl_check", name, key, count, reserve, headers, config), db)

    def reset(self, name: N, key: Key = "", *, db: object = None) -> bool:
        """Makes the limit full again; false if it was."""
        return self._run(self._calls.reset(name, key), db)

    def credit(
        self,
        name: N,
        key: Key,
        count: float,
        *,
        taken_at: datetime | None = None,
        config: Config | None = None,
        db: object = None,
    ) -> Result:
        """Gives back tokens that weren't used; a negative count takes them, whatever is there."""
        return self._run(self._calls.credit(name, key, count, taken_at, config), db)

    def value(self, name: N, key: Key = "", *, config: Config | None = None, db: object = None) -> Value:
        """The limit for a browser: what a route returns as JSON."""
        return self._run(self._calls.value(name, key, config), db)

    def limit_all(
        self,
        requests: Iterable[Request],
        *,
        throws: bool = False,
        headers: HeaderStyle | None = None,
        db: object = None,
    ) -> Results:
        """Takes from all of the limits, or from none. headers: by rl_headers_all."""
        results = self._run(self._calls.limit_all("rl_limit_all", requests, headers), db)
        if throws and (limit := results.denied_by):
            raise RateLimitExceeded(limit.name, limit.retry_after, limit.retry_at, results.headers)
        return results

    def check_all(
        self, requests: Iterable[Request], *, headers: HeaderStyle | None = None, db: object = None
    ) -> Results:
        """What limit_all would do, which takes nothing."""
        return self._run(self._calls.limit_all("rl_check_all", requests, headers), db)

    def acquire(
        self, name: N, key: Key = "", *, count: float = 1, config: Config | None = None, db: object = None
    ) -> Lease:
        """Takes slots of a concurrency limit: `with limiter.acquire(…) as lease:`, or look whether the lease is ok."""
        return Lease(self, name, self._run(self._calls.acquire(name, key, count, config), db), config, db)

    def extend(self, name: N, lease: str | None, *, config: Config | None = None, db: object = None) -> datetime | None:
        """Extends a lease that another process acquired; when it ends then, or None if it has."""
        return self._run(self._calls.extend(name, lease, config), db)

    def release(self, name: N, lease: str | None, *, config: Config | None = None, db: object = None) -> bool:
        """Releases a lease that another process acquired; false if it has ended."""
        return self._run(self._calls.release(name, lease, config), db)

    def hold(
        self,
        name: N,
        key: Key = "",
        count: float = 1,
        *,
        ttl: timedelta | float = TEN_MINUTES,
        id: str | None = None,
        at_least: float | None = None,
        on_expiry: OnExpiry = "refund",
        on_error: OnExpiry = "refund",
        reserve: bool = False,
        wait: timedelta | float | None = None,
        config: Config | None = None,
        db: object = None,
    ) -> Hold:
        """Holds tokens for work whose use is known later: `with limiter.hold(…) as hold:`, or look whether it is ok.

        ttl: until it expires, unless it is settled or extended, as a timedelta or in seconds.
        id: the same one again is the same hold.
        at_least: fewer than count are enough; held says how many.
        on_expiry, on_error: what becomes of the tokens if the process dies, and if the block ends with an exception.
        """

        def call(count: float, id: str | None, at_least: float | None) -> Call[Held]:
            return self._calls.hold(name, key, count, ttl, id, at_least, on_expiry, reserve, config)

        held = self._patiently(call(count, id, at_least), db, wait, reserve)
        again = lambda more, id: call(_again(count, held, more), id, None)  # noqa: E731
        return Hold(self, name, held, again, on_error, db)

    def settle(self, hold: str | None, used: float | None = None, *, db: object = None) -> Result:
        """Settles a hold of one limit by its id, as Hold.settle does."""
        return self._run(self._calls.settle(hold, used), db)

    def hold_all(
        self,
        requests: Iterable[Request],
        *,
        ttl: timedelta | float = TEN_MINUTES,
        id: str | None = None,
        on_expiry: OnExpiry = "refund",
        on_error: OnExpiry = "refund",
        db: object = None,
    ) -> HoldAll:
        """Holds tokens of all of the limits, or of none; as hold."""
        return HoldAll(self, self._run(self._calls.hold_all(requests, ttl, id, on_expiry), db), on_error, db)

    def settle_all(self, hold: str | None, used: Used | None = None, *, db: object = None) -> list[SettledLimit]:
        """Settles a hold of several limits by its id, as HoldAll.settle does."""
        return self._run(self._calls.settle_all(hold, used), db)

    def define(self, *, db: object = None) -> list[str]:
        """Creates the definitions, and replaces those that differ; returns their names. With defined=True."""
        return self._run(self._calls.define(), db)

    def _run(self, call: Call[T], db: object) -> T:
        return self._once(call, database(self._where(db)))

    def _once(self, call: Call[T], on: Database) -> T:
        began = time.perf_counter()
        try:
            place = self._calls.place()
            if place is None:
                place = self._calls.found(on.run(FIND, ()))
            result = call.read(on.run(call.sql.replace("@", place), call.values))
        except BaseException as error:
            self._failed(call, error, began)
            raise
        self._tell(call, result, began, None)
        return result

    def _patiently(self, call: Call[Taken], db: object, wait: timedelta | float | None, reserve: bool) -> Taken:
        on = database(self._where(db))
        if wait is None:
            return self._once(call, on)
        self._refuse_wait(on.in_transaction(), reserve)
        patience = _Patience(wait)
        while True:
            result = self._once(call, on)
            pause = patience.pause(result.ok, result.retry_after)
            if pause is None:
                return result
            time.sleep(pause)


# Asynchronous: the same, with await.


class AsyncLease(_Lent):
    """As Lease, with `async with`."""

    def __init__(
        self, limiter: AsyncRateLimiter[Any], name: str, lent: Lent, config: Config | None, db: object
    ) -> None:
        super().__init__(name, lent)
        self._limiter, self._config, self._db = limiter, config, db

    async def extend(self) -> bool:
        if self.id is None:
            return self.ok
        expires_at = await self._limiter.extend(self.name, self.id, config=self._config, db=self._db)
        self.expires_at = expires_at or self.expires_at
        return expires_at is not None

    async def release(self) -> bool:
        if self._ended:
            return False
        released = await self._limiter.release(self.name, self.id, config=self._config, db=self._db)
        self._ended = True
        return released

    async def __aenter__(self) -> AsyncLease:
        self._entered()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _end_async(error, self.release(), self._limiter._is_apart(self._db))


class AsyncHold(_Held):
    """As Hold, with `async with`."""

    def __init__(
        self,
        limiter: AsyncRateLimiter[Any],
        name: str,
        held: Held,
        again: Callable[[float | None, str], Call[Held]],
        on_error: OnExpiry,
        db: object,
    ) -> None:
        super().__init__(name, held, on_error)
        self._limiter, self._again, self._db = limiter, again, db

    async def settle(self, used: float | None = None, *, db: object = None) -> Result | None:
        """As that of Hold."""
        if self._ended:
            return None
        result = await self._limiter.settle(self.id, used, db=self._db if db is None else db)
        self._ended = True
        return result

    async def extend(self, count: float | None = None) -> bool:
        if self.id is None:
            return self.ok
        return self._extended(await self._limiter._run(self._again(count, self.id), self._db))

    async def __aenter__(self) -> AsyncHold:
        self._entered()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        settles = self.settle(self._used_at_end(error is not None))
        await _end_async(error, settles, self._limiter._is_apart(self._db))


class AsyncHoldAll(_HeldAll):
    """As HoldAll, with `async with`."""

    def __init__(self, limiter: AsyncRateLimiter[Any], held: HeldAll, on_error: OnExpiry, db: object) -> None:
        super().__init__(held, on_error)
        self._limiter, self._db = limiter, db

    async def settle(self, used: Used | None = None, *, db: object = None) -> list[SettledLimit]:
        """As that of HoldAll."""
        if self._ended:
            return []
        settled = await self._limiter.settle_all(self.id, used, db=self._db if db is None else db)
        self._ended = True
        return settled

    async def __aenter__(self) -> AsyncHoldAll:
        self._entered()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        settles = self.settle(self._used_at_end(error is not None))
        await _end_async(error, settles, self._limiter._is_apart(self._db))


class _Block(Protocol):
    """What `async with` enters, and leaves."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Pending(Generic[E]):
    """A call that is awaited, or entered by `async with`."""

    def __init__(self, start: Callable[[], Awaitable[E]]) -> None:
        self._start = start
        self._entered: list[E] = []

    def __await__(self) -> Generator[Any, None, E]:
        return self._start().__await__()

    async def __aenter__(self) -> E:
        self._entered.append(await self._start())
        await self._entered[-1].__aenter__()
        return self._entered[-1]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.pop().__aexit__(kind, error, trace)


# Ends of blocks that go on after their task was cancelled: asyncio keeps no task alive.
_ending: set[asyncio.Task[object]] = set()


async def _end_async(error: BaseException | None, ends: Coroutine[Any, Any, object], apart: bool) -> None:
    """As _end. On a connection of its own it goes on if the task is cancelled; on the caller's it must not."""
    try:
        if not apart:
            await ends
            return
        task = asyncio.ensure_future(ends)
        _ending.add(task)
        task.add_done_callback(_ending.discard)
        await asyncio.shield(task)
    except Exception as other:
        if error is None:
            raise
        log.warning("the end of a block failed, after an exception in it: %r", innermost(other))


class AsyncRateLimiter(_Limiter[N]):
    """As RateLimiter, with the asynchronous connections. Its methods are awaited; acquire, hold and hold_all are
    awaited or entered by `async with`. Tasks may share it."""

    async def limit(
        self,
        name: N,
        key: Key = "",
        *,
        count: float = 1,
        reserve: bool = False,
        wait: timedelta | float | None = None,
        throws: bool = False,
        headers: HeaderStyle | None = None,
        config: Config | None = None,
        db: object = None,
    ) -> Result:
        """Takes tokens, if there are enough.

        reserve: the call may put the limit into debt; retry_at is when to start the work.
        wait: seconds for which a denied call waits and tries again, if it can pass by then. Not in a transaction.
        throws: a denial raises RateLimitExceeded, here and not in the database, so it aborts no transaction.
        headers: the result has them, by rl_headers, on which the role needs EXECUTE.
        config: of a limit that the limiter doesn't have.
        db: instead of the limiter's.
        """
        call = self._calls.limit("rl_limit", name, key, count, reserve, headers, config)
        result = await self._patiently(call, db, wait, reserve)
        if throws and not result.ok:
            raise RateLimitExceeded(name, result.retry_after, result.retry_at, result.headers)
        return result

    async def check(
        self,
        name: N,
        key: Key = "",
        *,
        count: float = 1,
        reserve: bool = False,
        headers: HeaderStyle | None = None,
        config: Config | None = None,
        db: object = None,
    ) -> Result:
        """What limit would do, which takes nothing."""
        return await self._run(self._calls.limit("rl_check", name, key, count, reserve, headers, config), db)

    async def reset(self, name: N, key: Key = "", *, db: object = None) -> bool:
        """Makes the limit full again; false if it was."""
        return await self._run(self._calls.reset(name, key), db)

    async def credit(
        self,
        name: N,
        key: Key,
        count: float,
        *,
        taken_at: datetime | None = None,
        config: Config | None = None,
        db: object = None,
    ) -> Result:
        """Gives back tokens that weren't used; a negative count takes them, whatever is there."""
        return await self._run(self._calls.credit(name, key, count, taken_at, config), db)

    async def value(self, name: N, key: Key = "", *, config: Config | None = None, db: object = None) -> Value:
        """The limit for a browser: what a route returns as JSON."""
        return await self._run(self._calls.value(name, key, config), db)

    async def limit_all(
        self,
        requests: Iterable[Request],
        *,
        throws: bool = False,
        headers: HeaderStyle | None = None,
        db: object = None,
    ) -> Results:
        """Takes from all of the limits, or from none. headers: by rl_headers_all."""
        results = await self._run(self._calls.limit_all("rl_limit_all", requests, headers), db)
        if throws and (limit := results.denied_by):
            raise RateLimitExceeded(limit.name, limit.retry_after, limit.retry_at, results.headers)
        return results

    async def check_all(
        self, requests: Iterable[Request], *, headers: HeaderStyle | None = None, db: object = None
    ) -> Results:
        """What limit_all would do, which takes nothing."""
        return await self._run(self._calls.limit_all("rl_check_all", requests, headers), db)

    def acquire(
        self, name: N, key: Key = "", *, count: float = 1, config: Config | None = None, db: object = None
    ) -> Pending[AsyncLease]:
        """Takes slots of a concurrency limit: `async with limiter.acquire(…) as lease:`, or await it, and look whether
        it is ok."""
        call = self._calls.acquire(name, key, count, config)

        async def start() -> AsyncLease:
            return AsyncLease(self, name, await self._run(call, db), config, db)

        return Pending(start)

    async def extend(
        self, name: N, lease: str | None, *, config: Config | None = None, db: object = None
    ) -> datetime | None:
        """Extends a lease that another process acquired; when it ends then, or None if it has."""
        return await self._run(self._calls.extend(name, lease, config), db)

    async def release(self, name: N, lease: str | None, *, config: Config | None = None, db: object = None) -> bool:
        """Releases a lease that another process acquired; false if it has ended."""
        return await self._run(self._calls.release(name, lease, config), db)

    def hold(
        self,
        name: N,
        key: Key = "",
        count: float = 1,
        *,
        ttl: timedelta | float = TEN_MINUTES,
        id: str | None = None,
        at_least: float | None = None,
        on_expiry: OnExpiry = "refund",
        on_error: OnExpiry = "refund",
        reserve: bool = False,
        wait: timedelta | float | None = None,
        config: Config | None = None,
        db: object = None,
    ) -> Pending[AsyncHold]:
        """Holds tokens for work whose use is known later: `async with limiter.hold(…) as hold:`, or await it, and look
        whether it is ok.

        ttl: until it expires, unless it is settled or extended, as a timedelta or in seconds.
        id: the same one again is the same hold.
        at_least: fewer than count are enough; held says how many.
        on_expiry, on_error: what becomes of the tokens if the process dies, and if the block ends with an exception.
        """

        def call(count: float, id: str | None, at_least: float | None) -> Call[Held]:
            return self._calls.hold(name, key, count, ttl, id, at_least, on_expiry, reserve, config)

        first = call(count, id, at_least)

        async def start() -> AsyncHold:
            held = await self._patiently(first, db, wait, reserve)
            again = lambda more, id: call(_again(count, held, more), id, None)  # noqa: E731
            return AsyncHold(self, name, held, again, on_error, db)

        return Pending(start)

    async def settle(self, hold: str | None, used: float | None = None, *, db: object = None) -> Result:
        """Settles a hold of one limit by its id, as Hold.settle does."""
        return await self._run(self._calls.settle(hold, used), db)

    def hold_all(
        self,
        requests: Iterable[Request],
        *,
        ttl: timedelta | float = TEN_MINUTES,
        id: str | None = None,
        on_expiry: OnExpiry = "refund",
        on_error: OnExpiry = "refund",
        db: object = None,
    ) -> Pending[AsyncHoldAll]:
        """Holds tokens of all of the limits, or of none; as hold."""
        call = self._calls.hold_all(requests, ttl, id, on_expiry)

        async def start() -> AsyncHoldAll:
            return AsyncHoldAll(self, await self._run(call, db), on_error, db)

        return Pending(start)

    async def settle_all(self, hold: str | None, used: Used | None = None, *, db: object = None) -> list[SettledLimit]:
        """Settles a hold of several limits by its id, as HoldAll.settle does."""
        return await self._run(self._calls.settle_all(hold, used), db)

    async def define(self, *, db: object = None) -> list[str]:
        """Creates the definitions, and replaces those that differ; returns their names. With defined=True."""
        return await self._run(self._calls.define(), db)

    async def _run(self, call: Call[T], db: object) -> T:
        return await self._once(call, async_database(self._where(db)))

    async def _once(self, call: Call[T], on: AsyncDatabase) -> T:
        began = time.perf_counter()
        try:
            place = self._calls.place()
            if place is None:
                place = self._calls.found(await on.run(FIND, ()))
            result = call.read(await on.run(call.sql.replace("@", place), call.values))
        except BaseException as error:
            self._failed(call, error, began)
            raise
        self._tell(call, result, began, None)
        return result

    async def _patiently(self, call: Call[Taken], db: object, wait: timedelta | float | None, reserve: bool) -> Taken:
        on = async_database(self._where(db))
        if wait is None:
            return await self._once(call, on)
        self._refuse_wait(on.in_transaction(), reserve)
        patience = _Patience(wait)
        while True:
            result = await self._once(call, on)
            pause = patience.pause(result.ok, result.retry_after)
            if pause is None:
                return result
            await asyncio.sleep(pause)

    def _is_apart(self, db: object) -> bool:
        return async_database(self._where(db)).apart


def _again(count: float, held: Held, more: float | None) -> float:
    """What a hold that is extended is to hold: what it holds, if it has fewer than it asked for, or more."""
    return more if more is not None else count if held.held is None else min(count, held.held)
