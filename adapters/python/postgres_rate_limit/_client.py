"""The clients, synchronous and asynchronous. The calls are in _calls, the drivers in _databases."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import uniform
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar, Union

from postgres_rate_limit._borrowed import AsyncBorrowed, Borrowed
from postgres_rate_limit._calls import FIND, Call, Calls, HeaderStyle, Held, HeldAll, Key, Lent, Request, seconds_of
from postgres_rate_limit._configs import Config
from postgres_rate_limit._databases import AsyncDatabase, Database, Deadline, async_database, database, is_over
from postgres_rate_limit._denials import Denials, Remembering
from postgres_rate_limit._failing import OnError, Question, checked, not_now
from postgres_rate_limit._lines import Lines
from postgres_rate_limit._results import (
    AllResult,
    Decision,
    RateLimitExceeded,
    RequestResult,
    Result,
    SettleResult,
    Unsettled,
    Value,
    aged,
    denied_by,
    denying,
    innermost,
)
from postgres_rate_limit._steps import drive, drive_async

if TYPE_CHECKING:
    # Type checkers have it; Python has it from 3.13 on.
    from typing_extensions import Self
    from typing_extensions import TypeVar as TypeVarWithDefault

    N = TypeVarWithDefault("N", bound=str, default=str)
else:
    N = TypeVar("N", bound=str)
T = TypeVar("T")
U = TypeVar("U")
A = TypeVar("A")
M = TypeVar("M")
E = TypeVar("E", bound="_Enters")
K = TypeVar("K", bound="_Taken")
OnExpiry = Literal["refund", "charge"]
Used = Union[float, Mapping[str, float]]
TEN_MINUTES = timedelta(minutes=10)
_NOTHING_HELD = HeldAll(True, None, None, [])
log = logging.getLogger("postgres_rate_limit")


# The steps of a call, the same in both clients, each made in the client's own way.


class _Query(NamedTuple):
    sql: str
    values: Sequence[Any]
    deadline: Deadline


class _Pause(NamedTuple):
    seconds: float


class _Ask(NamedTuple):
    question: Question
    deadline: Deadline


class _InLine(NamedTuple):
    first: Any
    seconds: float


Step = Union[_Query, _Pause, _Ask, _InLine]
Steps = Generator[Step, Any, T]


class _Limiter(Generic[N]):
    """The shared part of both clients."""

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
    ) -> None:
        """
        limits: each by its name, in the form of token_bucket and the other builders.
        db: runs the calls without a db of their own.
        defined: calls send names only, because the limits are defined in the database: by define(), or by sql() in a
            migration. Then limits may be the names alone.
        schema: of the functions; default: found at the first call.
        on_decision: called for each limit that a call takes from, is denied by, or fails on. Its exceptions are logged
            and go no further.
        on_unsettled: called with a hold that a block has left, and that was not settled by the actual use: either the
            use was not a number of tokens, so that everything held counts, or the database failed. Default: a warning.
        on_error: "open": a call that asks whether work may be done is allowed if the database can't answer now
            (docs/failing.md lists these errors), or not in time. Not in a transaction of the caller's.
        timeout: seconds after which such a call fails and its connection is closed; None: with "open" 5, or else never.
            Not in a transaction of the caller's.
        remember_denials: limit, check, limit_all and check_all are denied without a database call for the time of an
            earlier denial, for at most a second; a dict with max and at_most sets the number of denials, and the
            maximum time in seconds.
        """
        self._calls = Calls(limits, defined, schema)
        self._db, self._on_decision, self._on_unsettled = db, on_decision, on_unsettled
        self._on_error = checked(on_error)
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout is {timeout!r}; allowed: seconds, more than 0")
        self._timeout = timeout
        self._denials: Denials[Any] = Denials(remember_denials)
        self._lines = Lines(self._make_event)

    _make_event: Callable[[], Any]

    @property
    def names(self) -> tuple[str, ...]:
        return self._calls.names

    def sql(self) -> str:
        """The statements that define the limits, for a migration. With defined=True."""
        return self._calls.sql()

    def _where(self, db: object) -> object:
        return self._db if db is None else db

    def _steps(
        self,
        call: Call[T],
        on: Database | AsyncDatabase,
        on_error: OnError | None,
        wait: timedelta | float | None,
        where: Hashable,
    ) -> Steps[T]:
        """where: calls with the same value that wait for the same slots form a line."""
        if wait is None:
            return (yield from self._once(call, on, on_error))
        self._refuse_wait(on.in_transaction())
        patience = _Patience(wait)
        if not call.slots or patience.left <= 0:
            return (yield from self._patiently(call, on, on_error, patience))
        place = self._lines.join((os.getpid(), where, call.sql, call.values))
        try:
            if not place.first.is_set():
                yield _InLine(place.first, min(patience.left, threading.TIMEOUT_MAX))
            return (yield from self._patiently(call, on, on_error, patience))
        finally:
            place.leave()

    def _patiently(
        self, call: Call[T], on: Database | AsyncDatabase, on_error: OnError | None, patience: _Patience
    ) -> Steps[T]:
        while True:
            result: Any = yield from self._once(call, on, on_error)
            # Slots may be released at any time.
            deny = denying(getattr(result, "results", ()))
            looks = bool(call.slots) and all(each.name in call.slots for each in deny)
            pause = patience.pause(result.ok, result.retry_after, looks)
            if pause is None:
                answer: T = result
                return answer
            yield _Pause(pause)

    def _once(self, call: Call[T], on: Database | AsyncDatabase, on_error: OnError | None) -> Steps[T]:
        opens = (self._on_error if on_error is None else checked(on_error)) == "open"
        timeout = self._timeout if self._timeout is not None else 5 if opens else math.inf
        alone = False
        if opens or self._denials or timeout < math.inf:
            # Its error aborts no transaction of the caller's, and its denial is not due to that transaction's own
            # takes.
            alone = _is_alone(on)
        if on_error == "open" and not alone and (call.id or call.names):
            raise TypeError('on_error is "open" in a transaction, which the error aborts; allowed: a pool or an engine')
        began, sent = time.perf_counter(), time.monotonic()
        if alone and (denial := self._denials.find(call.id, call.count)):
            remembered: T = aged(denial.answer, denial.passed)
            self._tell(call, remembered, began, None, remembered=True)
            return remembered
        deadline = sent + timeout if alone and timeout < math.inf else None
        try:
            place = self._calls.place()
            if place is None:
                place = self._calls.found((yield _Query(FIND, (), deadline)))
            result = call.read((yield _Query(call.sql.replace("@", place), call.values, deadline)))
        except BaseException as error:
            if not (alone and opens and call.opened):
                self._failed(call, error, began)
                raise
            verdict = not_now(error, on.address)
            if not (verdict if isinstance(verdict, bool) else (yield _Ask(verdict, deadline))):
                self._failed(call, error, began)
                raise
            if self._on_decision is None or call.decides is None:
                log.warning("a call went unchecked: %r", innermost(error))
            result = call.opened(innermost(error))
            self._tell(call, result, began, error)
            return result
        finally:
            if call.forgets is not None:
                self._denials.forget(call.forgets or None)
        self._tell(call, result, began, None)
        if alone and call.id is not None:
            answer: Any = result
            if not answer.ok:
                self._denials.add(call.id, call.count, sent, answer.retry_after, answer)
        return result

    def _tell(
        self, call: Call[T], result: T | None, began: float, error: BaseException | None, remembered: bool = False
    ) -> None:
        if self._on_decision is None or call.decides is None:
            return
        seconds = time.perf_counter() - began
        failed = [(name, False, None, None) for name in dict.fromkeys(call.names)]
        for told in failed if result is None else call.decides(result):
            try:
                self._on_decision(Decision(*told, seconds, error and innermost(error), remembered))
            except Exception as failure:
                _forget(failure, error)
                log.exception("on_decision failed", exc_info=failure)

    def _unsettled(self, unsettled: Unsettled) -> None:
        if self._on_unsettled is None:
            log.warning("the hold %s was not settled by what was used: %r", unsettled.hold, unsettled.error)
            return
        try:
            self._on_unsettled(unsettled)
        except Exception:
            log.exception("on_unsettled failed")

    def _failed(self, call: Call[Any], error: BaseException, began: float) -> None:
        """Raises the error in the words of the client, if it has any."""
        self._tell(call, None, began, error)
        explained = self._calls.explain(error, call.names[0] if len(call.names) == 1 else None)
        if explained:
            raise explained from error

    @staticmethod
    def _patience(wait: timedelta | float) -> _Patience:
        return _Patience(wait)

    @staticmethod
    def _refuse_transaction(on: Database | AsyncDatabase) -> None:
        if not _is_alone(on):
            raise TypeError(
                "db is in a transaction, whose rollback would undo what is borrowed and returned; allowed: a pool"
            )

    @staticmethod
    def _refuse_wait(in_transaction: bool) -> None:
        if in_transaction:
            raise RuntimeError(
                "wait is given in a transaction, which would keep its locks meanwhile; allowed: a pool or an engine as "
                "db"
            )


def _is_alone(on: Database | AsyncDatabase) -> bool:
    """Whether a statement is known to be in no transaction of the caller's."""
    return on.apart or (on.told and not on.in_transaction())


def _forget(failure: BaseException, error: BaseException | None) -> None:
    """Cuts off the error that was handled when the failure happened: it may show the parameters of a call."""
    while failure.__context__ is not None:
        if failure.__context__ is error:
            failure.__context__ = None
            return
        failure = failure.__context__


# The seconds after which a caller that waits for slots checks again.
_LOOK = 0.25


class _Patience:
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


class _Taken:
    """Taken for a while, and given back at the end."""

    _limiter: Any

    def __init__(self, limiter: Any, taken: Lent | Held | HeldAll, on_error: OnError | None, db: object) -> None:
        self.ok, self.id, self.expires_at, self.error = taken.ok, taken.id, taken.expires_at, taken.error
        # There is no id, and nothing to end, if the call was denied or went unchecked, or the key is exempt.
        self._on_error: OnError | None = on_error
        self._limiter, self._db, self._ended = limiter, db, taken.id is None

    def __bool__(self) -> bool:
        return self.ok

    def _entered(self) -> None:
        if denied := self._denied():
            raise RateLimitExceeded(*denied)

    def _denied(self) -> tuple[str, float | None, datetime | None] | None:
        raise NotImplementedError

    def _begins_in(self) -> float:
        """Seconds until reserved work may begin."""
        return 0

    def _give_up(self) -> None:
        """Notes that reserved work will not begin."""

    def _ending(self, failed: bool) -> Call[Any]:
        raise NotImplementedError

    def _at_end(self, failed: bool) -> tuple[Call[Any], object, OnError | None]:
        """The call at the end of a block. If it fails open, finished work doesn't fail."""
        self._ended = True
        return replace(self._ending(failed), opened=lambda error: None), self._db, self._on_error

    def _is_ended(self) -> bool:
        return self._ended

    def _end_failed(self, other: Exception, error: BaseException | None) -> None:
        """other: the reason why the end of a block failed. After an exception in the block, that exception goes on."""
        if error is None:
            raise other
        log.warning("the end of a block failed, after an exception in it: %r", innermost(other))


class _Lent(_Taken):
    """A lease of a concurrency limit. True if the slots were taken."""

    def __init__(
        self, limiter: Any, name: str, lent: Lent, config: Config | None, on_error: OnError | None, db: object
    ) -> None:
        super().__init__(limiter, lent, on_error, db)
        self._name, self._config = name, config
        self.retry_after, self.retry_at = lent.retry_after, lent.retry_at
        self.remaining, self.capacity = lent.remaining, lent.capacity
        self.reset_at, self.limited_by = lent.reset_at, lent.limited_by

    def _denied(self) -> tuple[str, float | None, datetime | None] | None:
        return None if self.ok else (self._name, self.retry_after, self.retry_at)

    def _extended(self, expires_at: datetime | None) -> bool:
        self.expires_at = expires_at or self.expires_at
        return expires_at is not None

    def _ending(self, failed: bool) -> Call[bool]:
        calls: Calls = self._limiter._calls
        return calls.release(self._name, self.id, self._config)


class _Holding(_Taken, Generic[U, A, M]):
    """Tokens held for work with a use not known yet. True if they are held. U: what was used; A: the answer to a
    settlement; M: what more to hold."""

    used: U | None = None
    """The use to settle at the end of the block, if settle hasn't been called: set it to the use, or to the use so
    far; for several limits by name, or one number for all. If it is not a number from 0 on, everything held is
    settled, and on_unsettled is called."""
    _said = False
    """Whether settle was called."""
    _settled_in: object = None
    """The caller's transaction in which it was called."""
    _hears: Callable[[Any, BaseException], object] | None = None
    """Called with the use that could not be settled, and the error, in place of on_unsettled; None: the end of a
    block raises."""
    _again: Callable[[M | None, str], Call[Any]]
    _on_exception: OnExpiry
    _begins: float
    """The time when reserved work may begin, by the monotonic clock."""

    def _begins_in(self) -> float:
        return max(0.0, self._begins - time.monotonic())

    def _give_up(self) -> None:
        nothing: Any = 0
        self.used = nothing

    @property
    def _nothing(self) -> A:
        """The answer if there is nothing to settle."""
        raise NotImplementedError

    def _settlement(self, used: U | None) -> Call[A]:
        raise NotImplementedError

    def _ending(self, failed: bool) -> Call[A]:
        nothing: Any = 0
        if self.used is None and failed and self._on_exception == "refund" and not self._said:
            self.used = nothing
        return self._settlement(self.used)

    def _unsettled(self, used: U | None, error: BaseException) -> None:
        if self.id is not None:
            hears = self._hears or (lambda used, error: self._limiter._unsettled(Unsettled(self.id, used, error)))
            hears(used, error)

    def _counts(self, used: U) -> U | None:
        """The part of it that is numbers of tokens; None: none."""
        raise NotImplementedError

    def _counted(self, used: U | None) -> U | None:
        """The use, or everything held (None) if it is not a number from 0 on: the work is done, and is paid."""
        if used is None:
            return None
        given: Any = used
        if isinstance(used, Mapping):  # one without a number is one that isn't named
            given = {name: each for name, each in used.items() if each is not None}
        self.used = self._counts(given)
        if self.used != given:
            self._unsettled(self.used, TypeError(f"used is {used!r}; allowed: a number from 0 on"))
        return self.used

    def _at_end(self, failed: bool) -> tuple[Call[Any], object, OnError | None]:
        call, db, on_error = super()._at_end(failed)
        return replace(call, opened=self._end_opened), db, on_error

    def _end_opened(self, error: BaseException) -> None:
        self._unsettled(self.used, error)

    def _end_failed(self, other: Exception, error: BaseException | None) -> None:
        if self._hears is None and error is None:
            raise other
        self._unsettled(self.used, innermost(other))

    def _is_ended(self) -> bool:
        # In a transaction that continues, its locks would make the end of the block wait forever.
        return super()._is_ended() or (self._settled_in is not None and not is_over(self._settled_in))

    def _settles(self, used: U | None) -> Call[A]:
        self.used, self._said = self.used if used is None else used, True
        return self._settlement(self.used)

    def _settled(self, db: object) -> None:
        """The end of the block settles again if a transaction of the caller's may roll the settlement back. It
        counts once."""
        self._settled_in = None if db is None or is_over(db) else db
        self._ended = self._settled_in is None

    def _is_settled(self) -> bool:
        return self._ended or self._settled_in is not None

    def _extension(self, more: M | None) -> Call[Any]:
        """on_decision is called if it asks for more."""
        assert self.id is not None
        call = self._again(more, self.id)
        return replace(call, decides=None) if more is None else call

    def _extended(self, held: Any) -> bool:
        if held.ok and held.error is None:
            self._holds(held)
            self.expires_at = held.expires_at
        return bool(held.ok)

    def _holds(self, held: Any) -> None:
        raise NotImplementedError


class _Held(_Holding[float, Result, float]):
    def __init__(
        self,
        limiter: Any,
        name: str,
        held: Held,
        again: Callable[[float | None, str], Call[Held]],
        on_exception: OnExpiry,
        on_error: OnError | None,
        db: object,
    ) -> None:
        super().__init__(limiter, held, on_error, db)
        self._begins = time.monotonic() + (held.retry_after or 0)
        self._name, self._again, self._on_exception = name, again, on_exception
        self.retry_after, self.retry_at = held.retry_after, held.retry_at
        self.remaining, self.capacity = held.remaining, held.capacity
        self.reset_at, self.limited_by = held.reset_at, held.limited_by
        self._holds(held)

    def _holds(self, held: Held) -> None:
        self.held = held.held

    def _denied(self) -> tuple[str, float | None, datetime | None] | None:
        return None if self.ok else (self._name, self.retry_after, self.retry_at)

    @property
    def _nothing(self) -> Result:
        return Result(self.ok, None, None, None, None, None)

    def _settlement(self, used: float | None) -> Call[Any]:
        calls: Calls = self._limiter._calls
        return calls.settle(self.id, self._counted(used))

    def _counts(self, used: float) -> float | None:
        return used if _is_count(used) else None


class _HeldAll(_Holding[Used, "list[SettleResult]", Iterable[Request]]):
    def __init__(
        self,
        limiter: Any,
        held: HeldAll,
        again: Callable[[Iterable[Request] | None, str], Call[HeldAll]],
        on_exception: OnExpiry,
        on_error: OnError | None,
        db: object,
    ) -> None:
        super().__init__(limiter, held, on_error, db)
        self._begins = time.monotonic() + max((each.retry_after or 0 for each in held.results), default=0)
        self._again, self._on_exception = again, on_exception
        self._holds(held)

    def _holds(self, held: HeldAll) -> None:
        self.results = held.results
        """In the order of the requests."""

    @property
    def denied_by(self) -> RequestResult | None:
        """The denying request with the longest wait; None if all are held."""
        return denied_by(self.ok, self.results)

    @property
    def retry_after(self) -> float | None:
        """Denied: seconds until none of them denies; None if one always will."""
        return self.denied_by.retry_after if self.denied_by else None

    @property
    def retry_at(self) -> datetime | None:
        return self.denied_by.retry_at if self.denied_by else None

    def _denied(self) -> tuple[str, float | None, datetime | None] | None:
        denying = self.denied_by
        if denying is None:
            return None if self.ok else ("", None, None)
        return denying.name, denying.retry_after, denying.retry_at

    @property
    def _nothing(self) -> list[SettleResult]:
        return []

    def _settlement(self, used: Used | None) -> Call[list[SettleResult]]:
        calls: Calls = self._limiter._calls
        return calls.settle_all(self.id, self._counted(used))

    def _counts(self, used: Used) -> Used | None:
        if not isinstance(used, Mapping):
            return float(used) if _is_count(used) else None
        counts = {name: float(each) for name, each in used.items() if _is_count(each)}
        return counts if counts or not used else None


# Synchronous.


class _Block(_Taken):
    def __enter__(self) -> Self:
        self._entered()
        try:
            if (seconds := self._begins_in()) > 0:
                time.sleep(seconds)
        except BaseException as error:
            self._give_up()
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_ended():
            return
        try:
            self._limiter._run(*self._at_end(error is not None))
        except Exception as other:
            self._end_failed(other, error)


class _HoldBlock(_Block, _Holding[U, A, M]):
    def settle(self, used: U | None = None, *, db: object = None) -> A:
        """Gives back unused tokens, or takes those used beyond the hold. Default of used: .used, or else everything
        held; for several limits by name, or one number for all; an unnamed limit has used everything. db: of the
        transaction that stores the answer: if it has rolled back by the end of the block, that settles. If used is
        not a number from 0 on, everything held is settled. The result isn't ok, or the list is empty, if the hold
        has been settled, or is gone, or was denied."""
        if self.id is None:
            return self._nothing
        settled: A = self._limiter._run(self._settles(used), self._db if db is None else db)
        self._settled(db)
        return settled

    def extend(self, more: M | None = None) -> bool:
        """Holds up to more, a count or requests, if that is more, and for ttl from now. false: denied, and the hold
        keeps its tokens; or it was settled, or denied before."""
        if self.id is None:
            return self.ok
        if self._is_settled():
            return False
        return self._extended(self._limiter._run(self._extension(more), self._db, self._on_error))


class Lease(_Lent, _Block):
    """Slots of a concurrency limit. `with` raises RateLimitExceeded if they weren't taken; its end releases them."""

    def extend(self) -> bool:
        """Extends the lease by the ttl of its limit, from now; false: it has expired, was released, or was denied."""
        if self.id is None:
            return self.ok
        return self._extended(self._limiter.extend(self._name, self.id, config=self._config, db=self._db))

    def release(self) -> bool:
        """Frees the slots; false: it has expired, was released before, or was denied."""
        if self.id is None:
            return self.ok
        if self._ended:
            return False
        released: bool = self._limiter._run(self._ending(False), self._db)
        self._ended = True
        return released


class Hold(_Held, _HoldBlock[float, Result, float]):
    """Held tokens. `with` raises RateLimitExceeded if they aren't held, waits until reserved work may begin, and
    settles at its end if settle hasn't been called: .used, or else everything held; after an exception nothing,
    unless .used or on_exception says otherwise."""


class HoldAll(_HeldAll, _HoldBlock[Used, "list[SettleResult]", Iterable[Request]]):
    """Held tokens of several limits. `with` works as for Hold."""


class RateLimiter(_Limiter[N]):
    """Limits counted in PostgreSQL, in the caller's own transaction if it passes its connection. Threads may share
    it. RateLimiter[Literal["a", "b"]] lets type checkers refuse other names."""

    _make_event = staticmethod(threading.Event)

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
        on_error: OnError | None = None,
        db: object = None,
    ) -> Result:
        """Takes tokens, if there are enough.

        reserve: the call may put the limit into debt; retry_at is the time to start the work.
        wait: seconds for which a denied call waits and tries again, if it can pass by then. Not in a transaction.
        throws: a denial raises RateLimitExceeded, here and not in the database, so it aborts no transaction.
        headers: the result has them, by rl_headers, on which the role needs EXECUTE.
        config: of a limit that the limiter doesn't have.
        on_error, db: instead of the limiter's.
        """
        call = self._calls.limit("rl_limit", name, key, count, reserve, headers, config)
        return _told(name, self._run(call, db, on_error, wait), throws)

    def check(
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
        """The result that limit would return. Takes nothing."""
        call = self._calls.limit("rl_check", name, key, count, reserve, headers, config)
        return _told(name, self._run(call, db, on_error), throws)

    def reset(self, name: N, key: Key = "", *, config: Config | None = None, db: object = None) -> bool:
        """Makes the limit full again; false if it was."""
        return self._run(self._calls.reset(name, key, config), db)

    def credit(
        self,
        name: N,
        key: Key = "",
        count: float = 1,
        *,
        taken_at: datetime | None = None,
        config: Config | None = None,
        db: object = None,
    ) -> Result:
        """Gives back tokens that weren't used; a negative count takes them, however many are left."""
        return self._run(self._calls.credit(name, key, count, taken_at, config), db)

    def value(self, name: N, key: Key = "", *, config: Config | None = None, db: object = None) -> Value:
        """The limit for a browser: what a route returns as JSON."""
        return self._run(self._calls.value(name, key, config), db)

    def limit_all(
        self,
        requests: Iterable[Request],
        *,
        wait: timedelta | float | None = None,
        throws: bool = False,
        headers: HeaderStyle | None = None,
        on_error: OnError | None = None,
        db: object = None,
    ) -> AllResult:
        """Takes from all of the limits, or from none. headers: by rl_headers_all."""
        call = self._calls.limit_all("rl_limit_all", requests, headers)
        return _told_all(self._run(call, db, on_error, wait), throws)

    def check_all(
        self,
        requests: Iterable[Request],
        *,
        throws: bool = False,
        headers: HeaderStyle | None = None,
        on_error: OnError | None = None,
        db: object = None,
    ) -> AllResult:
        """The result that limit_all would return. Takes nothing."""
        return _told_all(self._run(self._calls.limit_all("rl_check_all", requests, headers), db, on_error), throws)

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
    ) -> Lease:
        """Takes slots of a concurrency limit: `with limiter.acquire(…) as lease:`, or check whether the lease is ok.

        wait: seconds; because slots may be released at any time it checks again four times a second.
        """
        call = self._calls.acquire(name, key, count, config)
        return _granted(Lease(self, name, self._run(call, db, on_error, wait), config, on_error, db), throws)

    def extend(self, name: N, lease: str | None, *, config: Config | None = None, db: object = None) -> datetime | None:
        """Extends a lease that another process acquired; returns the new end, or None if it has ended."""
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
        on_exception: OnExpiry = "refund",
        reserve: bool = False,
        wait: timedelta | float | None = None,
        throws: bool = False,
        config: Config | None = None,
        on_error: OnError | None = None,
        db: object = None,
    ) -> Hold:
        """Holds tokens for work with a use known only later: `with limiter.hold(…) as hold:`, or check whether it is
        ok.

        ttl: until it expires, unless it is settled or extended, as a timedelta or in seconds.
        id: the id of an existing hold means the same hold.
        at_least: fewer than count are enough; held says how many.
        on_expiry, on_exception: what to do with the tokens if the process dies, if the block ends with an exception.
        """

        _check_otherwise(on_exception)

        def call(count: float, id: str | None, at_least: float | None) -> Call[Held]:
            return self._calls.hold(name, key, count, ttl, id, at_least, on_expiry, reserve, config)

        held = self._run(call(count, id, at_least), db, on_error, wait)
        again = lambda more, id: call(_again(count, held, more), id, None)  # noqa: E731
        return _granted(Hold(self, name, held, again, on_exception, on_error, db), throws)

    def settle(self, hold: str | None, used: float | None = None, *, db: object = None) -> Result:
        """Settles a hold of one limit by its id, as Hold.settle."""
        return self._run(self._calls.settle(hold, used), db)

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
    ) -> HoldAll:
        """Holds tokens of all of the limits, or of none; as hold. An exempt caller has no requests.

        wait: holds nothing meanwhile; if only slots are missing it checks again four times a second.
        """
        _check_otherwise(on_exception)
        requests = list(requests)

        def again(more: Iterable[Request] | None, id: str | None) -> Call[HeldAll]:
            return self._calls.hold_all(requests if more is None else more, ttl, id, on_expiry)

        held = self._run(again(None, id), db, on_error, wait) if requests else _NOTHING_HELD
        return _granted(HoldAll(self, held, again, on_exception, on_error, db), throws)

    def settle_all(self, hold: str | None, used: Used | None = None, *, db: object = None) -> list[SettleResult]:
        """Settles a hold of several limits by its id, as HoldAll.settle."""
        return self._run(self._calls.settle_all(hold, used), db)

    def borrow(
        self,
        name: N,
        *,
        borrow_for: timedelta | float = 1,
        max: int = 100,
        config: Config | None = None,
        on_error: OnError | None = None,
    ) -> Borrowed:
        """Takes of this limit that need no round trip: the process takes batches on the limiter's db, a pool or an
        engine, and spends them in memory. No rollback returns spent tokens.

        borrow_for: seconds, or a timedelta, after which a batch is not spent any more, and the rest is returned.
        max: the maximum number of tokens in a batch, except for a call with a larger count.
        """
        return Borrowed(self, name, borrow_for, max, config, on_error)

    def define(self, *, db: object = None) -> list[str]:
        """Creates the definitions, and replaces those that differ; returns their names. With defined=True."""
        return self._run(self._calls.define(), db)

    def _run_apart(self, call: Call[T], on_error: OnError | None) -> T:
        self._refuse_transaction(database(self._where(None)))
        return self._run(call, None, on_error)

    def _run(
        self,
        call: Call[T],
        db: object,
        on_error: OnError | None = None,
        wait: timedelta | float | None = None,
    ) -> T:
        on = database(self._where(db))

        def make(step: Step) -> Any:
            if isinstance(step, _Query):
                return on.run(*step)
            if isinstance(step, _Ask):
                return step.question(step.deadline)
            if isinstance(step, _InLine):
                return step.first.wait(step.seconds)
            time.sleep(step.seconds)

        return drive(self._steps(call, on, on_error, wait, id(self._where(db))), make)


# Asynchronous: the same, with await.


class _AsyncBlock(_Taken):
    async def __aenter__(self) -> Self:
        self._entered()
        try:
            if (seconds := self._begins_in()) > 0:
                await asyncio.sleep(seconds)
        except BaseException as error:
            self._give_up()
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_ended():
            return
        if not self._limiter._is_apart(self._db):
            await self._end(error)
            return
        # On a connection of its own it continues if the task is cancelled; on the caller's it must not.
        task = asyncio.ensure_future(self._end(error))
        _ending.add(task)
        task.add_done_callback(_ending.discard)
        await asyncio.shield(task)

    async def _end(self, error: BaseException | None) -> None:
        try:
            await self._limiter._run(*self._at_end(error is not None))
        except Exception as other:
            self._end_failed(other, error)


# Ends of blocks that continue after their task was cancelled: asyncio keeps no task alive.
_ending: set[asyncio.Future[None]] = set()


class _AsyncHoldBlock(_AsyncBlock, _Holding[U, A, M]):
    async def settle(self, used: U | None = None, *, db: object = None) -> A:
        """As in Hold and HoldAll."""
        if self.id is None:
            return self._nothing
        settled: A = await self._limiter._run(self._settles(used), self._db if db is None else db)
        self._settled(db)
        return settled

    async def extend(self, more: M | None = None) -> bool:
        """As in Hold and HoldAll."""
        if self.id is None:
            return self.ok
        if self._is_settled():
            return False
        return self._extended(await self._limiter._run(self._extension(more), self._db, self._on_error))


class AsyncLease(_Lent, _AsyncBlock):
    """As Lease, with `async with`."""

    async def extend(self) -> bool:
        if self.id is None:
            return self.ok
        return self._extended(await self._limiter.extend(self._name, self.id, config=self._config, db=self._db))

    async def release(self) -> bool:
        if self.id is None:
            return self.ok
        if self._ended:
            return False
        released: bool = await self._limiter._run(self._ending(False), self._db)
        self._ended = True
        return released


class AsyncHold(_Held, _AsyncHoldBlock[float, Result, float]):
    """As Hold, with `async with`."""


class AsyncHoldAll(_HeldAll, _AsyncHoldBlock[Used, "list[SettleResult]", Iterable[Request]]):
    """As HoldAll, with `async with`."""


class _Enters(Protocol):
    """A context manager for `async with`."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.pop().__aexit__(kind, error, trace)


class AsyncRateLimiter(_Limiter[N]):
    """As RateLimiter, with the asynchronous connections. Its methods are awaited; acquire, hold and hold_all are
    awaited or entered by `async with`. Tasks may share it."""

    _make_event = staticmethod(asyncio.Event)

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

        reserve: the call may put the limit into debt; retry_at is the time to start the work.
        wait: seconds for which a denied call waits and tries again, if it can pass by then. Not in a transaction.
        throws: a denial raises RateLimitExceeded, here and not in the database, so it aborts no transaction.
        headers: the result has them, by rl_headers, on which the role needs EXECUTE.
        config: of a limit that the limiter doesn't have.
        on_error, db: instead of the limiter's.
        """
        call = self._calls.limit("rl_limit", name, key, count, reserve, headers, config)
        return _told(name, await self._run(call, db, on_error, wait), throws)

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
        """The result that limit would return. Takes nothing."""
        call = self._calls.limit("rl_check", name, key, count, reserve, headers, config)
        return _told(name, await self._run(call, db, on_error), throws)

    async def reset(self, name: N, key: Key = "", *, config: Config | None = None, db: object = None) -> bool:
        """Makes the limit full again; false if it was."""
        return await self._run(self._calls.reset(name, key, config), db)

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
        """Gives back tokens that weren't used; a negative count takes them, however many are left."""
        return await self._run(self._calls.credit(name, key, count, taken_at, config), db)

    async def value(self, name: N, key: Key = "", *, config: Config | None = None, db: object = None) -> Value:
        """The limit for a browser: what a route returns as JSON."""
        return await self._run(self._calls.value(name, key, config), db)

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
        """Takes from all of the limits, or from none. headers: by rl_headers_all."""
        call = self._calls.limit_all("rl_limit_all", requests, headers)
        return _told_all(await self._run(call, db, on_error, wait), throws)

    async def check_all(
        self,
        requests: Iterable[Request],
        *,
        throws: bool = False,
        headers: HeaderStyle | None = None,
        on_error: OnError | None = None,
        db: object = None,
    ) -> AllResult:
        """The result that limit_all would return. Takes nothing."""
        call = self._calls.limit_all("rl_check_all", requests, headers)
        return _told_all(await self._run(call, db, on_error), throws)

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
        it is ok.

        wait: seconds; because slots may be released at any time it checks again four times a second.
        """
        call = self._calls.acquire(name, key, count, config)

        async def start() -> AsyncLease:
            lent = await self._run(call, db, on_error, wait)
            return _granted(AsyncLease(self, name, lent, config, on_error, db), throws)

        return Pending(start)

    async def extend(
        self, name: N, lease: str | None, *, config: Config | None = None, db: object = None
    ) -> datetime | None:
        """Extends a lease that another process acquired; returns the new end, or None if it has ended."""
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
        on_exception: OnExpiry = "refund",
        reserve: bool = False,
        wait: timedelta | float | None = None,
        throws: bool = False,
        config: Config | None = None,
        on_error: OnError | None = None,
        db: object = None,
    ) -> Pending[AsyncHold]:
        """Holds tokens for work with a use known only later: `async with limiter.hold(…) as hold:`, or await it, and
        check whether it is ok.

        ttl: until it expires, unless it is settled or extended, as a timedelta or in seconds.
        id: the id of an existing hold means the same hold.
        at_least: fewer than count are enough; held says how many.
        on_expiry, on_exception: what to do with the tokens if the process dies, if the block ends with an exception.
        """

        _check_otherwise(on_exception)

        def call(count: float, id: str | None, at_least: float | None) -> Call[Held]:
            return self._calls.hold(name, key, count, ttl, id, at_least, on_expiry, reserve, config)

        first = call(count, id, at_least)

        async def start() -> AsyncHold:
            held = await self._run(first, db, on_error, wait)
            again = lambda more, id: call(_again(count, held, more), id, None)  # noqa: E731
            return _granted(AsyncHold(self, name, held, again, on_exception, on_error, db), throws)

        return Pending(start)

    async def settle(self, hold: str | None, used: float | None = None, *, db: object = None) -> Result:
        """Settles a hold of one limit by its id, as Hold.settle."""
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
        """Holds tokens of all of the limits, or of none; as hold. An exempt caller has no requests.

        wait: holds nothing meanwhile; if only slots are missing it checks again four times a second.
        """
        _check_otherwise(on_exception)
        requests = list(requests)

        def again(more: Iterable[Request] | None, id: str | None) -> Call[HeldAll]:
            return self._calls.hold_all(requests if more is None else more, ttl, id, on_expiry)

        first = again(None, id)

        async def start() -> AsyncHoldAll:
            held = await self._run(first, db, on_error, wait) if requests else _NOTHING_HELD
            return _granted(AsyncHoldAll(self, held, again, on_exception, on_error, db), throws)

        return Pending(start)

    async def settle_all(self, hold: str | None, used: Used | None = None, *, db: object = None) -> list[SettleResult]:
        """Settles a hold of several limits by its id, as HoldAll.settle."""
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
        """As in RateLimiter; not awaited."""
        return AsyncBorrowed(self, name, borrow_for, max, config, on_error)

    async def define(self, *, db: object = None) -> list[str]:
        """Creates the definitions, and replaces those that differ; returns their names. With defined=True."""
        return await self._run(self._calls.define(), db)

    async def _run_apart(self, call: Call[T], on_error: OnError | None) -> T:
        self._refuse_transaction(async_database(self._where(None)))
        return await self._run(call, None, on_error)

    async def _run(
        self,
        call: Call[T],
        db: object,
        on_error: OnError | None = None,
        wait: timedelta | float | None = None,
    ) -> T:
        on = async_database(self._where(db))

        async def make(step: Step) -> Any:
            if isinstance(step, _Query):
                return await on.run(*step)
            if isinstance(step, _Ask):
                return await asyncio.to_thread(step.question, step.deadline)
            if isinstance(step, _InLine):
                return await _waited(step.first, step.seconds)
            await asyncio.sleep(step.seconds)

        where = id(asyncio.get_running_loop()), id(self._where(db))
        return await drive_async(self._steps(call, on, on_error, wait, where), make)

    def _is_apart(self, db: object) -> bool:
        return async_database(self._where(db)).apart


def _told(name: str, result: Result, throws: bool) -> Result:
    if throws and not result.ok:
        raise RateLimitExceeded(name, result.retry_after, result.retry_at, result.headers)
    return result


def _told_all(result: AllResult, throws: bool) -> AllResult:
    if throws and (denying := result.denied_by):
        raise RateLimitExceeded(denying.name, denying.retry_after, denying.retry_at, result.headers)
    return result


def _is_count(used: Any) -> bool:
    """Whether this can be settled: a number of tokens, 0 to 1e15."""
    if isinstance(used, (str, bool)):
        return False
    try:
        return 0 <= float(used) <= 1e15
    except (TypeError, ValueError, OverflowError):
        return False


def _check_otherwise(on_exception: OnExpiry) -> None:
    if on_exception not in ("refund", "charge"):
        raise ValueError(f'on_exception is {on_exception!r}; allowed: "refund", "charge"')


def _granted(taken: K, throws: bool) -> K:
    if throws:
        taken._entered()
    return taken


async def _waited(event: asyncio.Event, seconds: float) -> None:
    task = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        task.cancel()


def _again(count: float, held: Held, more: float | None) -> float:
    """The tokens wanted by an extension: those held if fewer than it asked for, or more."""
    return more if more is not None else count if held.held is None else min(count, held.held)
