# Made from _borrowed_async.py by scripts/async_to_sync.py: change that one.
"""Tokens that a process has borrowed: how it asks for them, and returns the rest."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from postgres_rate_limit._borrowed import Borrowing, Left, passed
from postgres_rate_limit._calls import Key, Taken, key_of
from postgres_rate_limit._results import BorrowResult, Result, innermost, told
from postgres_rate_limit._waits import (
    Event,
    Lock,
    Thread,
    Patience,
    join,
    sleep,
    spawn,
    wait_for,
)

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("postgres_rate_limit")


class Borrowed(Borrowing):
    """Takes tokens of one limit, usually without a database call. Threads may share it. `with`
    closes it."""

    _make_asking = Lock

    def _begin(self) -> None:
        super()._begin()
        self._ends = Event()
        self._sweeper: Thread | None = None

    def limit(
        self, key: Key = "", *, count: float = 1, wait: timedelta | float | None = None, throws: bool = False
    ) -> BorrowResult:
        """Spends borrowed tokens, or else takes a new batch. wait, throws: as in RateLimiter.limit."""
        text = key_of(key)
        patience = None if wait is None else Patience(wait)
        while True:
            result = self._once(text, count)
            pause = None if patience is None else patience.pause(result.ok, result.retry_after)
            if pause is None:
                told(result, throws, self._name)
                return BorrowResult(
                    result.ok, result.retry_after, result.retry_at, result.limited_by, result.headers, result.error
                )
            sleep(pause)

    def _once(self, key: str, count: float) -> Result:
        left: list[Left] = []
        account = self._enter(key, count)
        try:
            seen = account.asked
            if self._spends(account, count):
                return passed()
            try:
                account.asking.acquire()
            finally:
                with self._lock:
                    account.awaited -= count
            try:
                known = self._known(account, count, seen)
                if known is not None:
                    return known
                question = self._ask(key, account, count, left)
                self._give_back(left)  # the call may need it
                calls = self._limiter._calls
                answer: Taken | BaseException
                try:
                    call = calls.take(self._name, key, question.least, question.most, self._config)
                    answer = self._limiter._run_apart(call, self._on_error)
                except BaseException as error:
                    answer = error
                return self._answered(key, account, question, answer, left)
            finally:
                account.asking.release()
        finally:
            with self._lock:
                account.users -= 1
                begins, self._sweeps = not self._sweeps, True
            if begins:
                self._sweeper = spawn(self._sweeping)
            self._give_back(left)

    def _sweeping(self) -> None:
        while not wait_for(self._ends, self._borrow_for):
            left = self._sweep()
            if left is None:
                return
            self._give_back(left)

    def _give_back(self, left: list[Left]) -> None:
        while left:
            try:
                key, count, taken_at = left.pop()
                call = self._limiter._calls.credit(self._name, key, count, taken_at, self._config)
                self._limiter._run_apart(call, None)
            except Exception as error:
                log.warning("borrowed tokens were not returned: %r", innermost(error))

    def close(self) -> None:
        """Returns all tokens that are left, and spends no more. Without it, for example if the process dies, they stay
        taken."""
        with self._lock:
            self._closed = True
            accounts = list(self._accounts.values())
        for account in accounts:
            with account.asking:
                pass
        self._ends.set()
        self._give_back(self._sweep(every=True) or [])
        if self._sweeper is not None:
            join(self._sweeper)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
