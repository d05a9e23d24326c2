"""The client. The calls are in _calls, the drivers in _databases."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

# begin async
from postgres_rate_limit._batch import Batch
from postgres_rate_limit._databases_async import shared_size

# end async
from postgres_rate_limit._borrowed_async import AsyncBorrowed
from postgres_rate_limit._calls import Call, Calls, HeaderStyle, HeldAll, Key, OnExpiry, Request, Used, seconds_of
from postgres_rate_limit._configs import Config
from postgres_rate_limit._databases import Database
from postgres_rate_limit._databases_async import answered_async, database_async, find_place_async
from postgres_rate_limit._denials import Denials, Remembering
from postgres_rate_limit._failing import OnError, checked, is_gone, not_now
from postgres_rate_limit._leases_async import AsyncHold, AsyncHoldAll, AsyncLease
from postgres_rate_limit._results import (
    AllResult,
    Decision,
    Result,
    SettleResult,
    Unsettled,
    Value,
    aged,
    denying,
    innermost,
    log,
    told,
)
from postgres_rate_limit._waits import AsyncEvent, Lines, Patience, Pending, wait_for_async

if TYPE_CHECKING:
    # Type checkers have it; Python has it from 3.13 on.
    from typing_extensions import TypeVar as TypeVarWithDefault

    N = TypeVarWithDefault("N", bound=str, default=str)
else:
    N = TypeVar("N", bound=str)
T = TypeVar("T")
TEN_MINUTES = timedelta(minutes=10)


class AsyncRateLimiter(Generic[N]):
    """Limits counted in PostgreSQL, in the caller's own transaction if it passes its connection.
    AsyncRateLimiter[Literal["a", "b"]] lets type checkers refuse other names. Its methods are awaited; acquire, hold
    and hold_all are awaited or entered by `async with`. Tasks may share it."""

    def __init__(
        self,
        limits: Mapping[N, Config] | Iterable[N],
        *,
        db: object = None,
        defined: bool = False,
        schema: str | None = None,
        on_decision: Callable[[Decision], object] | None = None,
        on_unsettled: Callable[[Unsettled], object] | None = None,
        on_error: OnError = "closed",
        timeout: float | None = None,
        remember_denials: bool | Remembering = False,
        # begin async
        batch: bool = True,
        # end async
    ) -> None:
        """
        limits: each by its name, in the form of token_bucket and the other builders.
        db: runs the calls without a db of their own.
        defined: calls send names only, because the limits are defined in the database: by define(), or by sql() in a
            migration. Then limits may be the names alone.
        schema: of the functions; default: found at the first call.
        on_decision: called for each limit that a call takes from, is denied by, or fails on. Its exceptions are logged
            and go no further.
        on_unsettled: called with a hold that could not be settled by its actual use at the end of its block, because
            this was not a number of tokens, so everything held counts, or the database failed. Default: a warning.
        on_error: what to do if a call can't be decided because the database can't answer now (docs/failing.md lists
            these errors), or not in time. "closed": raise the error; "open": allow the work, but not in a transaction
            of the caller's.
        timeout: seconds after which a call fails and its connection is closed; None: 5 with "open", otherwise never.
            Not in a transaction of the caller's.
        remember_denials: until an earlier denial ends, and for at most a second, deny limit, check, limit_all and
            check_all without a database call; a dict with max and at_most sets the number of denials to remember, and
            the maximum time in seconds.
        batch: on a pool as db, calls of limit that come while a statement is under way go together in the next one,
            each on its own, by rl_limit_each.
        """
        self._calls = Calls(limits, defined, schema)
        self._db, self._on_decision, self._on_unsettled = db, on_decision, on_unsettled
        self._on_error = checked(on_error)
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout is {timeout!r}; allowed: seconds, more than 0")
        self._timeout = timeout
        self._denials = Denials(remember_denials)
        self._lines = Lines(AsyncEvent)
        # begin async
        self._batches = batch
        self._own: tuple[object, Database] | None = None
        # end async

    @property
    def names(self) -> tuple[str, ...]:
        return self._calls.names

    def sql(self) -> str:
        """The SQL statements that define the limits, for a migration; needs defined=True."""
        return self._calls.sql()

    def _where(self, db: object) -> object:
        return self._db if db is None else db

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
        on_error: OnError | None = None,
        db: object = None,
    ) -> Result:
        """Takes tokens, if there are enough.

        reserve: take tokens in advance, by putting the limit into debt; retry_at is when to start the work.
        wait: seconds for which to wait and try again after a denial, if the call can pass by then. Not in a
            transaction.
        throws: raise RateLimitExceeded for a denial: in the client and not in the database, so no transaction aborts.
        headers: add HTTP headers to the result, made by rl_headers; the role needs EXECUTE on it.
        config: for a limit that the limiter doesn't have.
        on_error, db: used instead of the limiter's.
        """
        call = self._calls.limit("rl_limit", self._calls.of(name, key, config), count, reserve, headers)
        return told(await self._run(call, db, on_error, wait), throws, name)

    async def check(
        self,
        name: N,
        key: Key = "",
        *,
        count: float = 1,
        reserve: bool = False,
        throws: bool = False,
        headers: HeaderStyle | None = None,
        config: Config | None = None,
        on_error: OnError | None = None,
        db: object = None,
    ) -> Result:
        """Returns the result that limit would return, and takes nothing."""
        call = self._calls.limit("rl_check", self._calls.of(name, key, config), count, reserve, headers)
        return told(await self._run(call, db, on_error), throws, name)

    async def reset(self, name: N, key: Key = "", *, config: Config | None = None, db: object = None) -> bool:
        """Fills the limit up again; returns False if it was full."""
        return await self._run(self._calls.reset(self._calls.of(name, key, config)), db)

    async def credit(
        self,
        name: N,
        key: Key = "",
        count: float = 1,
        *,
        taken_at: datetime | None = None,
        config: Config | None = None,
        db: object = None,
    ) -> Result:
        """Gives back tokens that weren't used; a negative count takes tokens, however many are left."""
        return await self._run(self._calls.credit(self._calls.of(name, key, config), count, taken_at), db)

    async def value(self, name: N, key: Key = "", *, config: Config | None = None, db: object = None) -> Value:
        """Returns the limit in the form that a browser computes with: return it from a route as JSON."""
        return await self._run(self._calls.value(self._calls.of(name, key, config)), db)

    async def limit_all(
        self,
        requests: Iterable[Request],
        *,
        wait: timedelta | float | None = None,
        throws: bool = False,
        headers: HeaderStyle | None = None,
        on_error: OnError | None = None,
        db: object = None,
    ) -> AllResult:
        """Takes tokens from all of the limits, or from none. headers: made by rl_headers_all."""
        call = self._calls.limit_all("rl_limit_all", requests, headers)
        return told(await self._run(call, db, on_error, wait), throws)

    async def check_all(
        self,
        requests: Iterable[Request],
        *,
        throws: bool = False,
        headers: HeaderStyle | None = None,
        on_error: OnError | None = None,
        db: object = None,
    ) -> AllResult:
        """Returns the result that limit_all would return, and takes nothing."""
        call = self._calls.limit_all("rl_check_all", requests, headers)
        return told(await self._run(call, db, on_error), throws)

    def acquire(
        self,
        name: N,
        key: Key = "",
        *,
        count: float = 1,
        wait: timedelta | float | None = None,
        throws: bool = False,
        config: Config | None = None,
        on_error: OnError | None = None,
        db: object = None,
    ) -> Pending[AsyncLease]:
        """Takes slots of a concurrency limit: `async with limiter.acquire(…) as lease:`, or await it, and check whether
        the lease is ok.

        wait: seconds for which to wait; as slots may be released at any time, it checks again four times a second.
        """
        call = self._calls.acquire(self._calls.of(name, key, config), count)

        async def start() -> AsyncLease:
            lent = await self._run(call, db, on_error, wait)
            return told(AsyncLease(self, name, lent, config, on_error, db), throws, name)

        return Pending(start)

    async def extend(
        self, name: N, lease: str | None, *, config: Config | None = None, db: object = None
    ) -> datetime | None:
        """Extends a lease that another process acquired; returns its new end, or None if it has ended."""
        return await self._run(self._calls.extend(name, lease, config), db)

    async def release(self, name: N, lease: str | None, *, config: Config | None = None, db: object = None) -> bool:
        """Releases a lease that another process acquired; returns False if it has ended."""
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
        on_exception: OnExpiry = "refund",
        reserve: bool = False,
        wait: timedelta | float | None = None,
        throws: bool = False,
        config: Config | None = None,
        on_error: OnError | None = None,
        db: object = None,
    ) -> Pending[AsyncHold]:
        """Holds tokens for work that shows only later how many it uses:
        `async with limiter.hold(…) as hold:`, or await it, and check whether it is ok.

        ttl: the time until the hold expires, unless it is settled or extended: a timedelta, or seconds.
        id: an id of your own; with that of an existing hold the call returns the same hold.
        at_least: accept fewer tokens than count, but at least this many; held says how many there are.
        on_expiry: what to do with the tokens if the process dies.
        on_exception: what to do with them if the block ends with an exception.
        """
        checked(on_exception, "on_exception", ("refund", "charge"))
        limit = self._calls.of(name, key, config)
        call = partial(self._calls.hold, limit, ttl=ttl, least=None, on_expiry=on_expiry, reserve=reserve)
        first = call(count, id=id, least=at_least)

        async def start() -> AsyncHold:
            held = await self._run(first, db, on_error, wait)

            def asked() -> float:
                # The tokens held if fewer than it asked for.
                return count if held.held is None else min(count, held.held)

            return told(AsyncHold(self, name, held, asked, call, on_exception, on_error, db), throws, name)

        return Pending(start)

    async def settle(self, hold: str | None, used: float | None = None, *, db: object = None) -> Result:
        """Settles a hold of one limit by its id, as AsyncHold.settle."""
        return await self._run(self._calls.settle(hold, used), db)

    def hold_all(
        self,
        requests: Iterable[Request],
        *,
        ttl: timedelta | float = TEN_MINUTES,
        id: str | None = None,
        on_expiry: OnExpiry = "refund",
        on_exception: OnExpiry = "refund",
        wait: timedelta | float | None = None,
        throws: bool = False,
        on_error: OnError | None = None,
        db: object = None,
    ) -> Pending[AsyncHoldAll]:
        """Holds tokens of all of the limits, or of none, as hold does. For an exempt caller pass no requests.

        wait: as in hold. Nothing is held meanwhile; if only slots are missing, it checks again four times a second.
        """
        checked(on_exception, "on_exception", ("refund", "charge"))
        requests = list(requests)
        call = partial(self._calls.hold_all, ttl=ttl, on_expiry=on_expiry)
        first = call(requests, id=id)

        async def start() -> AsyncHoldAll:
            held = await self._run(first, db, on_error, wait) if requests else HeldAll(True, [])
            return told(AsyncHoldAll(self, None, held, lambda: requests, call, on_exception, on_error, db), throws)

        return Pending(start)

    async def settle_all(self, hold: str | None, used: Used | None = None, *, db: object = None) -> list[SettleResult]:
        """Settles a hold of several limits by its id, as AsyncHoldAll.settle."""
        return await self._run(self._calls.settle_all(hold, used), db)

    def borrow(
        self,
        name: N,
        *,
        borrow_for: timedelta | float = 1,
        max: int = 100,
        config: Config | None = None,
        on_error: OnError | None = None,
    ) -> AsyncBorrowed:
        """Takes tokens of this limit without a round trip: the process takes them in batches, on the limiter's db, a
        pool or an engine, and spends them in memory. No rollback returns spent tokens. Not awaited.

        borrow_for: the time for which a batch is spent, in seconds or as a timedelta; then the rest is returned.
        max: the maximum number of tokens in a batch, unless a call asks for more.
        """
        return AsyncBorrowed(self, name, borrow_for, max, config, on_error)

    async def define(self, *, db: object = None) -> list[str]:
        """Creates missing definitions and replaces those that differ; returns the names of both. Needs defined=True."""
        return await self._run(self._calls.define(), db)

    async def prune(
        self, *, max_rows: int = 10_000, undefined_idle: timedelta | float | None = None, db: object = None
    ) -> int:
        """Deletes a batch of rows that no result depends on, about max_rows, and gives back what has expired, as
        rl_prune; returns the number of rows.

        undefined_idle: also rows of limits that aren't defined, if unused for this time, in seconds or as a timedelta.
        """
        return await self._run(self._calls.prune(max_rows, undefined_idle), db)

    async def prune_every(
        self, period: timedelta | float = 60, *, undefined_idle: timedelta | float | None = None, db: object = None
    ) -> None:
        """Prunes after each period, in seconds or as a timedelta, and never returns. An error is logged."""
        while True:
            await asyncio.sleep(seconds_of(period))
            try:
                await self.prune(undefined_idle=undefined_idle, db=db)
            except Exception:
                log.exception("the limits' rows were not pruned")

    async def _run_apart(self, call: Call[T], on_error: OnError | None) -> T:
        """In no transaction of the caller's."""
        if database_async(self._db).in_transaction() is not False:
            raise TypeError(
                "db is in a transaction, whose rollback would undo what is borrowed and returned; allowed: a pool"
            )
        return await self._run(call, None, on_error)

    async def _run(
        self,
        call: Call[T],
        db: object,
        on_error: OnError | None = None,
        wait: timedelta | float | None = None,
    ) -> T:
        on = self._on(db, call)
        if wait is None:
            return await self._once(call, on, on_error)
        if on.in_transaction():
            raise RuntimeError(
                "wait is given in a transaction, which would keep its locks meanwhile; allowed: a pool or an engine as "
                "db"
            )
        patience = Patience(wait)
        # Calls that wait for the same slots form a line.
        line = os.getpid(), id(asyncio.get_running_loop()), id(self._where(db)), call.sql, call.values
        with self._lines.place(line) if call.slots and not patience.left <= 0 else nullcontext() as place:
            if place is not None and not place.is_set():
                await wait_for_async(place, patience.left)
            while True:
                result: Any = await self._once(call, on, on_error)
                # Slots may be released at any time.
                deny = denying(getattr(result, "results", ()))
                looks = bool(call.slots) and all(each.name in call.slots for each in deny)
                pause = patience.pause(result.ok, result.retry_after, looks)
                if pause is None:
                    return cast(T, result)
                await asyncio.sleep(pause)

    async def _once(self, call: Call[T], on: Database, on_error: OnError | None) -> T:
        opens = (self._on_error if on_error is None else checked(on_error)) == "open"
        timeout = self._timeout if self._timeout is not None else 5 if opens else math.inf
        # Its error aborts no transaction of the caller's, and its denial is not due to that transaction's own takes.
        alone = (opens or bool(self._denials) or timeout < math.inf) and on.in_transaction() is False
        if on_error == "open" and not alone and (call.id or call.names):
            raise TypeError('on_error is "open" in a transaction, which the error aborts; allowed: a pool or an engine')
        began, sent = time.perf_counter(), time.monotonic()
        if alone and (denial := self._denials.find(call.id, call.count)):
            remembered: T = aged(denial.answer, time.monotonic() - denial.began)
            self._tell(call, remembered, began, None, remembered=True)
            return remembered
        deadline = sent + timeout if alone and timeout < math.inf else None
        try:
            place = await find_place_async(on, self._calls, deadline)
            result = await answered_async(on, call, place, deadline)
        except BaseException as error:
            opened = call.opened if alone and opens else None
            verdict = opened is not None and not_now(error, on.address)
            is_later = verdict if isinstance(verdict, bool) else await asyncio.to_thread(is_gone, verdict, deadline)
            if opened is None or not is_later:
                self._tell(call, None, began, error)
                if explained := self._calls.explain(error, call.names[0] if len(call.names) == 1 else None):
                    raise explained from error
                raise
            if self._on_decision is None or call.decides is None:
                log.warning("a call went unchecked: %r", innermost(error))
            result = opened(innermost(error))
            self._tell(call, result, began, error)
            return result
        finally:
            if call.forgets is not None:
                for identity in call.forgets or (None,):
                    self._denials.forget(identity)
        self._tell(call, result, began, None)
        if alone and call.id is not None:
            answer: Any = result
            if not answer.ok:
                self._denials.add(call.id, call.count, sent, answer.retry_after, answer)
        return result

    def _on(self, db: object, call: Call[Any]) -> Database:
        # begin async
        if db is None and call.shares:  # on the limiter's own db, where calls share statements if it is a pool
            if self._own is None or self._own[0] is not self._db:
                own = database_async(self._db)
                size = shared_size(self._db) if self._batches else None
                self._own = self._db, own if size is None else own._replace(batch=Batch(self._calls, own, size))
            return self._own[1]
        # end async
        return database_async(self._where(db))

    def _tell(
        self, call: Call[T], result: T | None, began: float, error: BaseException | None, remembered: bool = False
    ) -> None:
        if self._on_decision is None or call.decides is None:
            return
        seconds = time.perf_counter() - began
        failed = [(name, False, None, None) for name in dict.fromkeys(call.names)]
        for verdict in failed if result is None else call.decides(result):
            try:
                self._on_decision(Decision(*verdict, seconds, error and innermost(error), remembered))
            except Exception as failure:
                _forget(failure, error)
                log.exception("on_decision failed", exc_info=failure)


def _forget(failure: BaseException, error: BaseException | None) -> None:
    """Cuts off the error that was handled when the failure happened: it may show the parameters of a call."""
    while failure.__context__ is not None:
        if failure.__context__ is error:
            failure.__context__ = None
            return
        failure = failure.__context__
