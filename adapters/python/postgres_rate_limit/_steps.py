"""Runs the steps of both kinds of client, each in the way of the client: a generator yields a step, and gets its
result, or the error that it raised."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")


def drive(steps: Generator[S, Any, T], make: Callable[[S], Any]) -> T:
    on: Callable[[], S] = partial(next, steps)
    while True:
        try:
            step = on()
        except StopIteration as end:
            answer: T = end.value
            return answer
        try:
            on = partial(steps.send, make(step))
        except BaseException as error:
            on = partial(steps.throw, error)


async def drive_async(steps: Generator[S, Any, T], make: Callable[[S], Awaitable[Any]]) -> T:
    on: Callable[[], S] = partial(next, steps)
    while True:
        try:
            step = on()
        except StopIteration as end:
            answer: T = end.value
            return answer
        try:
            on = partial(steps.send, await make(step))
        except BaseException as error:
            on = partial(steps.throw, error)
