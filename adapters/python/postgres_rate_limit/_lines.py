"""Lines of a process's calls that wait for the same slots: the first of each asks for all."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any


class Place:
    """The place of a call in its line."""

    def __init__(self, lines: Lines, id: Hashable, first: Any) -> None:
        self.first = first
        """An event, set when those before it in the line have left."""
        self._lines, self._id = lines, id

    def leave(self) -> None:
        self._lines._leave(self._id, self)


class Lines:
    """Threads may share it. make: an event, of threads or of the tasks of a loop."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lines: dict[Hashable, list[Place]] = {}
        self._lock = Lock()

    def join(self, id: Hashable) -> Place:
        place = Place(self, id, self._make())
        with self._lock:
            line = self._lines.setdefault(id, [])
            line.append(place)
            line[0].first.set()
        return place

    def _leave(self, id: Hashable, place: Place) -> None:
        with self._lock:
            line = self._lines[id]
            line.remove(place)
            if line:
                line[0].first.set()
            else:
                del self._lines[id]
