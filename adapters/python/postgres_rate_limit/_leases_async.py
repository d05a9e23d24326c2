"""Leases, and holds of one limit or several: what a limiter has taken for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from postgres_rate_limit._calls import Call, HeldAll, OnExpiry, Request, Taken, Used
from postgres_rate_limit._configs import Config
from postgres_rate_limit._databases import Database
from postgres_rate_limit._databases_async import database_async
from postgres_rate_limit._failing import OnError
from postgres_rate_limit._results import Answer, OfSeveral, Result, SettleResult, innermost, log, tell_unsettled, told

if TYPE_CHECKING:
    # Type checkers have it; Python has it from 3.11 on.
    from typing_extensions import Self

U = TypeVar("U")
A = TypeVar("A")
M = TypeVar("M")
# begin async
# Ends of blocks that continue after their task was cancelled: asyncio keeps no task alive.
_unfinished: set[asyncio.Future[None]] = set()
# end async


class _AsyncTaken(Answer):
    """Taken for a while, and given back at the end of the block."""

    _begins = 0.0
    """The time from which reserved work may begin, by the monotonic clock."""
    _settled_in: Database | None = None
    """The caller's connection on which settle was called, in a transaction."""
    _hears: Callable[[Any, BaseException], object] | None = None
    """Called with the use that could not be settled, and the error, in place of on_unsettled; None: the end of a
    block raises."""

    def __init__(
        self, limiter: Any, name: str | None, taken: Taken | HeldAll, on_error: OnError | None, db: object
    ) -> None:
        """name: of the limit; None: of several."""
        self._limiter, self._name, self._on_error, self._db = limiter, name, on_error, db
        self.ok, self.id, self.expires_at, self.error = taken.ok, taken.id, taken.expires_at, taken.error
        # There is no id, and nothing to end, if the call was denied or went unchecked, or the key is exempt.
        self._ended = taken.id is None
        if isinstance(self, _OfOne) and isinstance(taken, Taken):
            self._has(taken)

    async def __aenter__(self) -> Self:
        told(self, True, self._name)
        try:
            if (seconds := self._begins - time.monotonic()) > 0:
                await asyncio.sleep(seconds)
        except BaseException as error:
            self._give_up()
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # In a transaction that continues, its locks would make the end of the block wait forever.
        if not self._ended and (self._settled_in is None or self._settled_in.is_over()):
            # begin async
            if database_async(self._limiter._where(self._db)).apart:
                # On a connection of its own it continues if the task is cancelled; on the caller's it must not.
                task = asyncio.ensure_future(self._end(error))
                _unfinished.add(task)
                task.add_done_callback(_unfinished.discard)
                await asyncio.shield(task)
                return
            # end async
            await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        """If it fails open, finished work doesn't fail."""
        self._ended = True
        try:
            call = replace(self._ending(error is not None), opened=self._end_opened)
            await self._limiter._run(call, self._db, self._on_error)
        except Exception as other:
            # After an exception in the block, that exception goes on.
            if self._hears is None and error is None:
                raise
            self._end_failed(innermost(other))

    def _give_up(self) -> None:
        """Notes that reserved work will not begin."""

    def _ending(self, failed: bool) -> Any:
        """The call at the end of a block."""
        raise NotImplementedError

    def _end_opened(self, error: BaseException) -> None:
        """The end went unchecked."""

    def _end_failed(self, error: BaseException) -> None:
        log.warning("the end of a block failed, after an exception in it: %r", error)


class _OfOne:
    """The part of a lease or a hold that is the result of its limit."""

    def _has(self, lent: Taken) -> None:
        self.retry_after, self.retry_at = lent.retry_after, lent.retry_at
        self.remaining, self.capacity = lent.remaining, lent.capacity
        self.reset_at, self.limited_by = lent.reset_at, lent.limited_by


class AsyncLease(_AsyncTaken, _OfOne):
    """Slots of a concurrency limit. `async with` raises RateLimitExceeded if they weren't taken; its end releases
    them."""

    def __init__(
        self, limiter: Any, name: str, lent: Taken, config: Config | None, on_error: OnError | None, db: object
    ) -> None:
        super().__init__(limiter, name, lent, on_error, db)
        self._config = config

    async def extend(self) -> bool:
        """Extends the lease to the ttl of its limit from now; returns False if it has ended or was denied."""
        if self.id is None:
            return self.ok
        expires_at = await self._limiter.extend(self._name, self.id, config=self._config, db=self._db)
        self.expires_at = expires_at or self.expires_at
        return expires_at is not None

    async def release(self) -> bool:
        """Frees the slots; returns False if the lease has expired, was released before, or was denied."""
        if self.id is None:
            return self.ok
        if self._ended:
            return False
        released: bool = await self._limiter._run(self._ending(False), self._db)
        self._ended = True
        return released

    def _ending(self, failed: bool) -> Any:
        return self._limiter._calls.release(self._name, self.id, self._config)


class _AsyncHolding(_AsyncTaken, Generic[U, A, M]):
    """Tokens held for work with a use not known yet. True if they are held. U: what was used; A: the answer to a
    settlement; M: what more to hold."""

    used: U | None = None
    """The use to settle at the end of the block, if settle hasn't been called: set it to the use, or to the use so
    far; for several limits by name, or one number for all. If it is not a number from 0 on, everything held is
    settled, and on_unsettled is called."""
    _said = False
    """Whether settle was called."""

    def __init__(
        self,
        limiter: Any,
        name: str | None,
        held: Any,
        asked: Callable[[], M],
        call: Callable[..., Call[Any]],
        on_exception: OnExpiry,
        on_error: OnError | None,
        db: object,
    ) -> None:
        super().__init__(limiter, name, held, on_error, db)
        waits = [each.retry_after or 0 for each in getattr(held, "results", [held])]
        self._begins = time.monotonic() + max(waits, default=0)
        # The call that holds again, and what it asks for if extend asks for no more.
        self._call, self._asked, self._on_exception = call, asked, on_exception
        self._holds(held)

    async def settle(self, used: U | None = None, *, db: object = None) -> A:
        """Gives back unused tokens, or takes those used beyond the hold. The result isn't ok, or the list is empty, if
        the hold was settled before, was denied, or no longer exists.

        used: the tokens used; for several limits a dict by name, in which a limit without a number has used everything
            held, or one number for all. Default: .used, or else everything held, which is also settled if this is not
            a number from 0 on.
        db: the connection of the transaction that stores the answer; if it is rolled back by the end of the block, the
            end settles again.
        """
        if self.id is None:
            return cast(A, [] if self._name is None else Result(self.ok))
        self.used, self._said = self.used if used is None else used, True
        settled: A = await self._limiter._run(self._ending(False), self._db if db is None else db)
        # The end of the block settles again if a transaction of the caller's may roll the settlement back. It counts
        # once.
        on = None if db is None else database_async(db)
        self._settled_in = None if on is None or on.is_over() else on
        self._ended = self._settled_in is None
        return settled

    async def extend(self, more: M | None = None) -> bool:
        """Extends the hold to ttl from now and, with more, a count or requests, raises it to that. Returns False if
        that is denied, when the hold keeps its tokens, or if it was settled or denied before."""
        if self.id is None:
            return self.ok
        if self._ended or self._settled_in is not None:
            return False
        held = await self._limiter._run(self._extension(more), self._db, self._on_error)
        if held.ok and held.error is None:
            self._holds(held)
            self.expires_at = held.expires_at
        return bool(held.ok)

    async def _keep(self) -> None:
        """Extends the hold of a stream. Only logs an error: the answer continues, and is settled all the same."""
        try:
            await self.extend()
        except Exception as error:
            log.warning("a hold was not extended: %r", innermost(error))

    def _give_up(self) -> None:
        self.used = cast(U, 0)

    def _holds(self, held: Any) -> None:
        raise NotImplementedError

    def _ending(self, failed: bool) -> Any:
        if self.used is None and failed and self._on_exception == "refund" and not self._said:
            self._give_up()
        calls = self._limiter._calls
        self._count()
        return (calls.settle_all if self._name is None else calls.settle)(self.id, self.used)

    def _count(self) -> None:
        """The use becomes everything held (None) if it is not a number from 0 on: the work is done, and is paid."""
        used: Any = self.used
        given = used
        counts: Any = used if _is_count(used) else None
        if self._name is None and isinstance(used, Mapping):  # one without a number is one that isn't named
            given = {name: each for name, each in used.items() if each is not None}
            counts = {name: float(each) for name, each in given.items() if _is_count(each)}
            counts = counts if counts or not given else None
        self.used = counts
        if counts != given:
            self._unsettled(TypeError(f"used is {used!r}; allowed: a number from 0 on"))

    def _unsettled(self, error: BaseException) -> None:
        if self._hears is not None:
            self._hears(self.used, error)
        else:
            tell_unsettled(self._limiter._on_unsettled, self.id, self.used, error)

    _end_opened = _end_failed = _unsettled

    def _extension(self, more: M | None) -> Call[Any]:
        """on_decision is called if it asks for more."""
        call = self._call(self._asked() if more is None else more, id=self.id)
        return replace(call, decides=None) if more is None else call


class AsyncHold(_AsyncHolding[float, Result, float], _OfOne):
    """Held tokens. `async with` raises RateLimitExceeded if they aren't held, waits until reserved work may begin, and
    settles at its end if settle hasn't been called: .used, or else everything held; after an exception nothing,
    unless .used or on_exception says otherwise."""

    def _holds(self, held: Taken) -> None:
        self.held = held.held


class AsyncHoldAll(_AsyncHolding[Used, "list[SettleResult]", Iterable[Request]], OfSeveral):
    """Held tokens of several limits. `async with` works as for AsyncHold."""

    def _holds(self, held: HeldAll) -> None:
        self.results = held.results
        """In the order of the requests."""


def _is_count(used: Any) -> bool:
    """Whether this can be settled: a number of tokens, 0 to 1e15."""
    if isinstance(used, (str, bool)):
        return False
    try:
        return 0 <= float(used) <= 1e15
    except (TypeError, ValueError, OverflowError):
        return False
