"""Tokens that a process has borrowed: it takes a batch of them in one database call, and spends it in memory."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from threading import Lock
from typing import Any
from weakref import WeakSet

from postgres_rate_limit._calls import Key, Taken, key_of, seconds_of
from postgres_rate_limit._configs import Config
from postgres_rate_limit._facts import FACTS
from postgres_rate_limit._failing import OnError, checked
from postgres_rate_limit._results import LimitedBy, Result

# The kinds that can be borrowed: tokens can be given back to them.
_LENDS = FACTS["lends"]


class _Batch:
    """sent, sent_at: the time of the request, by the monotonic clock, which stops on a suspended machine, and by the
    other. taken_at: None: taken without a limit, so nothing is returned."""

    __slots__ = ("taken", "left", "sent", "sent_at", "lasts", "taken_at")

    def __init__(
        self, taken: float, left: float, sent: float, sent_at: float, lasts: float, taken_at: datetime | None
    ) -> None:
        self.taken, self.left, self.sent, self.sent_at = taken, left, sent, sent_at
        self.lasts, self.taken_at = lasts, taken_at

    def passed(self) -> float:
        return max(time.monotonic() - self.sent, time.time() - self.sent_at)

    def spends(self, count: float) -> bool:
        """Spends from the batch; false: it has too few tokens, or has ended."""
        if not 0 <= count <= self.left or self.passed() >= self.lasts:
            return False
        self.left -= count
        return True


class _Account:
    """The tokens of a key. Its database calls take turns by asking."""

    __slots__ = ("batch", "size", "users", "awaited", "asked", "last", "asking")

    def __init__(self, asking: Any) -> None:
        self.batch: _Batch | None = None
        self.size = 0
        """Tokens of the next batch, to last between half and all of its time. 0: unknown."""
        self.users, self.awaited = 0, 0.0
        """Running calls, and the tokens of those that wait for another."""
        self.asked = 0
        self.last: tuple[float, Taken | Exception] | None = None
        """The number of database calls; the count and the answer of the last one."""
        self.asking = asking


@dataclass(frozen=True)
class _Question:
    count: float
    had: float
    least: float
    most: float
    sent: float
    sent_at: float


Left = tuple[str, float, datetime]
"""A key, the rest of its batch, and the time when that was taken."""
# A forked child has none of its parent's tokens.
_all: WeakSet[Borrowing] = WeakSet()


def _forget_all() -> None:
    for each in list(_all):
        each._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


class Borrowing:
    """The shared part of both kinds. The lock is held only for the moments in which accounts change."""

    _make_asking: Callable[[], Any]

    def __init__(
        self,
        limiter: Any,
        name: str,
        borrow_for: timedelta | float,
        max: int,
        config: Config | None,
        on_error: OnError | None,
    ) -> None:
        self._borrow_for, self._max = seconds_of(borrow_for), max
        if not 0.001 <= self._borrow_for <= 60:
            raise ValueError(f"borrow_for is {borrow_for!r}; allowed: 0.001 to 60 seconds")
        if not isinstance(max, int) or max < 1:
            raise ValueError(f"max is {max!r}; allowed: an int from 1 on")
        kind = limiter._calls.kind(name, config)
        if kind not in (None, *_LENDS):
            raise ValueError(f"{kind} can't be borrowed; allowed: {', '.join(_LENDS)}")
        self._name = name
        self._limiter, self._config = limiter, config
        self._on_error: OnError | None = None if on_error is None else checked(on_error)
        self._closed = False
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = Lock()
        self._accounts: dict[str, _Account] = {}
        self._sweeps = False

    def take(self, key: Key = "", *, count: float = 1) -> bool:
        """Spends borrowed tokens, without a database call; returns False if there are too few: then call limit."""
        with self._lock:
            account = self._accounts.get(key_of(key))
            return account is not None and account.batch is not None and account.batch.spends(count)

    def _enter(self, key: str, count: float) -> _Account:
        if not 0 <= count < math.inf:
            raise ValueError(f"count is {count!r}; allowed: a number from 0 on")
        with self._lock:
            self._check_open()
            account = self._accounts.get(key)
            if account is None:
                account = self._accounts[key] = _Account(self._make_asking())
            account.users += 1
            return account

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the borrowed tokens were returned by close()")

    def _spends(self, account: _Account, count: float) -> bool:
        """Spends from the batch, or notes that the call waits."""
        with self._lock:
            if account.batch is not None and account.batch.spends(count):
                return True
            account.awaited += count
            return False

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
            if account.batch is not None and account.batch.spends(count):
                return passed()
            return None

    def _ask(self, key: str, account: _Account, count: float, left: list[Left]) -> _Question:
        """The request for the tokens missing for the count, and for a batch."""
        with self._lock:
            batch, had = account.batch, 0.0
            sent, sent_at = time.monotonic(), time.time()
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
            return _Question(count, had, least, most, sent, sent_at)

    def _answered(
        self, key: str, account: _Account, question: _Question, answer: Taken | BaseException, left: list[Left]
    ) -> Result:
        """Takes the answer. Raises it if it is an exception."""
        with self._lock:
            if account.batch is not None and (isinstance(answer, BaseException) or not answer.ok):
                account.batch.left += question.had
            if isinstance(answer, BaseException):
                if isinstance(answer, Exception):
                    account.asked += 1
                    account.last = (question.count, answer)
                raise answer
            account.asked += 1
            account.last = (question.count, answer)
            if answer.error is not None or not answer.ok:
                return answer
            self._end(key, account, left)
            account.batch = self._batch(answer, question)
            size = account.size // 2 if answer.taken < question.most else account.size  # others want them, too
            account.size = max(size, 1) if account.batch.lasts > 0 else 0
            return passed(answer.limited_by)

    def _batch(self, answer: Taken, question: _Question) -> _Batch:
        value = json.loads(answer.value)
        config, now = value["config"], datetime.fromtimestamp(value["now"] / 1000, timezone.utc)
        lasts = 0.0
        # The rest is useless if it can't be returned; a dry run has more tokens than there were to take.
        if config.get("enforce") is not False and config["kind"] in ("token bucket", "unlimited"):
            lasts = self._borrow_for
        elif config.get("enforce") is not False and config["kind"] == "fixed window" and answer.reset_at is not None:
            lasts = min(self._borrow_for, answer.reset_at.timestamp() - value["now"] / 1000)
        left = answer.taken - question.least
        taken_at = None if config["kind"] == "unlimited" else now
        return _Batch(answer.taken, left, question.sent, question.sent_at, lasts, taken_at)

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


def passed(limited_by: LimitedBy | None = None) -> Result:
    return Result(True, None, None, None, None, None, limited_by)
