"""Calls of rl_limit that share statements: those that come while a statement is under way go together in the next one,
by rl_limit_each. A call that comes alone goes at once, as rl_limit."""

from __future__ import annotations

import asyncio
import time
from asyncio import AbstractEventLoop, Future, Task
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from statistics import median
from weakref import WeakKeyDictionary, proxy

from postgres_rate_limit._calls import Call, Calls, HeaderStyle, request_of
from postgres_rate_limit._databases import Database, Deadline, left
from postgres_rate_limit._databases_async import answered_async, find_place_async
from postgres_rate_limit._results import Result, chain, sqlstate

# The most calls in a statement, and bytes of their requests.
_CALLS, _BYTES = 64, 1_000_000
# A statement that is out for longer than this many seconds, and than this many times the median, holds up no others.
_LATE, _TIMES = 0.02, 4
# The seconds for which no statement is shared after the database has refused one.
_REFUSED = 600.0


@dataclass(eq=False, slots=True)
class _Statement:
    """A statement under way, of one call or several. began: by the monotonic clock."""

    began: float
    watch: asyncio.TimerHandle | None = None


@dataclass(eq=False, slots=True)
class _Waiting:
    """A call that waits for the next statement. answer: its result; the statement in which it is alone; or None, if it
    has to go alone, since its request has an error, its row was locked for too long, or the statement failed, which
    took nothing."""

    request: str
    headers: HeaderStyle | None
    deadline: Deadline
    answer: Future[Result | _Statement | None]

    def late(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(TimeoutError("the database did not answer in time"))


class Batch:
    """The calls of a limiter on its pool. size: the connections of the pool; 0 while no statement may be shared."""

    def __init__(self, calls: Calls, on: Database, size: Callable[[], int]) -> None:
        self.calls, self.on, self.size = calls, on, size
        self.refused_until = 0.0
        self._lines: WeakKeyDictionary[AbstractEventLoop, _Line] = WeakKeyDictionary()

    def limit(self, call: Call[Result], place: str, deadline: Deadline) -> Awaitable[Result]:
        if time.monotonic() < self.refused_until or (size := self.size()) == 0:
            return answered_async(self.on, call, place, deadline)
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            line = self._lines[loop] = _Line(self, loop)
        if line.is_free(size):
            return line.run(line.begins(), call, place, deadline)
        return line.limit(call, place, deadline)

    async def together(self, waiting: list[_Waiting]) -> list[Result | None]:
        # Gives up the connection when the last of them has.
        deadlines = [each.deadline for each in waiting]
        deadline = None if None in deadlines else max(each for each in deadlines if each is not None)
        place = await find_place_async(self.on, self.calls, deadline, is_shared=True)
        call = self.calls.each([(each.request, each.headers) for each in waiting])
        return await answered_async(self.on, call, place, deadline)

    def is_sent_again(self, error: BaseException) -> bool:
        """Whether each call of a failed statement is to go alone: the statement has taken nothing, and its error may be
        due to one of them. Not after a time-out or a lost connection, and not for what fails any call."""
        state = next((state for state in map(sqlstate, chain(error)) if state), None)
        # 42704: a definition went after the tokens were taken, before rl_headers; those in memory stay taken.
        if state is None or state[:2] in ("08", "25", "53", "57") or state in ("55P03", "42704"):
            return False
        if state in ("42501", "42883", "0A000"):  # no EXECUTE, an older version, a distributed table
            self.refused_until = time.monotonic() + _REFUSED
        return state != "40001" or not self.calls.serializable


class _Line:
    """The calls of an event loop. One statement at a time holds up others, and it soon no longer does."""

    def __init__(self, batch: Batch, loop: AbstractEventLoop) -> None:
        self._batch, self._loop = batch, proxy(loop)
        self._waiting: deque[_Waiting] = deque()
        self._under_way: _Statement | None = None
        """The one that holds up others."""
        self._out = 0
        """The statements without an answer yet."""
        self._lasted: deque[float] = deque([0.0], maxlen=31)
        """Seconds that the last statements took."""
        self._tasks: set[Task[None]] = set()

    async def limit(self, call: Call[Result], place: str, deadline: Deadline) -> Result:
        request = request_of(call)
        if request is None:
            return await answered_async(self._batch.on, call, place, deadline)
        waiting = _Waiting(request, call.headers, deadline, self._loop.create_future())
        self._waiting.append(waiting)
        self._watch()
        end = None if deadline is None else self._loop.call_later(left(deadline) or 0, waiting.late)
        try:
            answer = await waiting.answer
        except asyncio.CancelledError:
            if waiting.answer.done() and not waiting.answer.cancelled() and not waiting.answer.exception():
                if isinstance(turn := waiting.answer.result(), _Statement):
                    self._ended(turn)
            raise
        finally:
            if end is not None:
                end.cancel()
        if isinstance(answer, _Statement):
            return await self.run(answer, call, place, deadline)
        return await answered_async(self._batch.on, call, place, deadline) if answer is None else answer

    async def run(self, statement: _Statement, call: Call[Result], place: str, deadline: Deadline) -> Result:
        """Runs a call alone, in this statement."""
        try:
            return await answered_async(self._batch.on, call, place, deadline)
        finally:
            self._ended(statement)

    def is_free(self, size: int) -> bool:
        """Whether a statement may begin, on a pool of this size."""
        return self._under_way is None and self._out < size

    def begins(self) -> _Statement:
        self._under_way = statement = _Statement(time.monotonic())
        self._out += 1
        return statement

    def _ended(self, statement: _Statement) -> None:
        self._out -= 1
        self._lasted.append(time.monotonic() - statement.began)
        self._passes(statement)

    def _passes(self, statement: _Statement) -> None:
        """The statement has ended, or is late: others go."""
        if statement.watch is not None:
            statement.watch.cancel()
        if self._under_way is statement:
            self._under_way = None
        if self._waiting and self.is_free(self._batch.size()):
            self._next()

    def _watch(self) -> None:
        statement = self._under_way
        if self._waiting and statement is not None and statement.watch is None:
            late = max(_LATE, _TIMES * median(self._lasted))
            rest = statement.began + late - time.monotonic()
            statement.watch = self._loop.call_later(max(rest, 0), self._passes, statement)

    def _next(self) -> None:
        together: list[_Waiting] = []
        size = 0
        while self._waiting and len(together) < _CALLS:
            waiting = self._waiting[0]
            if not waiting.answer.done():  # otherwise given up
                size += len(waiting.request.encode())
                if together and size > _BYTES:
                    break
                together.append(waiting)
            self._waiting.popleft()
        if not together:
            return
        statement = self.begins()
        if len(together) == 1:
            together[0].answer.set_result(statement)
        else:
            # It belongs to no caller, so it sees no variables of one's context.
            task = Context().run(self._loop.create_task, self._shared(statement, together))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._watch()

    async def _shared(self, statement: _Statement, together: list[_Waiting]) -> None:
        try:
            answers = await self._batch.together(together)
        except Exception as error:
            again = self._batch.is_sent_again(error)
            for waiting in together:
                if not waiting.answer.done():
                    waiting.answer.set_result(None) if again else waiting.answer.set_exception(error)
        except BaseException:  # the loop ends
            for waiting in together:
                waiting.answer.cancel()
            raise
        else:
            for waiting, answer in zip(together, answers):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)
        finally:
            self._ended(statement)
