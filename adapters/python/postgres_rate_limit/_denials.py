"""Denials that a process remembers, to answer the denied calls without a database call until they end."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import Any, TypedDict, Union


class Remembering(TypedDict, total=False):
    """The number of remembered denials (10,000), and the maximum time in seconds (1)."""

    max: int
    at_most: float


@dataclass
class Denial:
    count: float
    began: float
    """The time when the call was sent, by the monotonic clock."""
    ends: float
    answer: Any
    read: Any = None
    """The state that a store has read of the key since, with the time."""


class Denials:
    """Threads may share it. The id of a call begins with the identity that it counts for; None: several."""

    def __init__(self, given: Union[bool, Mapping[str, Any], None]) -> None:
        """given: the option remember_denials."""
        fields = {"max": 10_000, "at_most": 1.0, **(given if isinstance(given, Mapping) else {})}
        if given is not None and not isinstance(given, (bool, Mapping)) or set(fields) != {"max", "at_most"}:
            raise ValueError(f'remember_denials is {given!r}; allowed: a bool, or a dict with "max" and "at_most"')
        self._max, self._at_most = fields["max"], fields["at_most"]
        if not (self._max >= 1 and self._at_most > 0):
            raise ValueError(f"remember_denials is {given!r}; allowed: max of at least 1, at_most above 0, in seconds")
        self._on = bool(given)
        self._denials: OrderedDict[tuple[Any, ...], Denial] = OrderedDict()
        # By the monotonic clock: the times when ids were forgotten, the latest at the end; all of the others; any of
        # them.
        self._forgotten: OrderedDict[Hashable, float] = OrderedDict()
        self._all_forgotten = self._last_forgotten = -inf
        self._lock = Lock()

    def __bool__(self) -> bool:
        return self._on

    def find(self, id: tuple[Any, ...] | None, count: float) -> Denial | None:
        """The denial that applies to this count, too."""
        if not self._on or id is None:
            return None
        with self._lock:
            denial = self._denials.get(id)
            if denial is None:
                return None
            # Several identities may include any, so they are forgotten with each.
            all_or_own = max(self._all_forgotten, self._forgotten.get(id[0], -inf))
            forgotten = self._last_forgotten if id[0] is None else all_or_own
            if denial.ends <= time.monotonic() or denial.began <= forgotten:
                del self._denials[id]
                return None
            if count < denial.count:
                return None
            self._denials.move_to_end(id)
            return denial

    def add(self, id: tuple[Any, ...], count: float, began: float, retry_after: float | None, answer: Any) -> None:
        """began: before the call was sent, so that the denial ends here no later than in the database."""
        if not self._on:
            return
        seconds = self._at_most if retry_after is None else min(retry_after, self._at_most)
        with self._lock:
            self._denials[id] = Denial(count, began, began + seconds, answer)
            self._denials.move_to_end(id)
            if len(self._denials) > self._max:
                self._denials.popitem(last=False)

    def forget(self, whom: Hashable | None) -> None:
        """Forgets denials of calls sent until now, including calls not answered yet. None: all."""
        if not self._on:
            return
        with self._lock:
            self._last_forgotten = time.monotonic()
            if whom is None:
                self._all_forgotten = self._last_forgotten
                self._denials.clear()
                self._forgotten.clear()
                return
            self._forgotten[whom] = self._last_forgotten
            self._forgotten.move_to_end(whom)
            if len(self._forgotten) > self._max:
                _, self._all_forgotten = self._forgotten.popitem(last=False)
