"""Lines of a process's calls that wait for the same slots: the first of each asks for all."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any


class Lines:
    """Threads may share it. make: an event, of threads or of the tasks of a loop."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lines: dict[Hashable, list[Any]] = {}
        self._lock = Lock()

    def join(self, id: Hashable) -> Any:
        """Returns a place in the line: an event, set when those before it have left."""
        place = self._make()
        with self._lock:
            line = self._lines.setdefault(id, [])
            line.append(place)
            line[0].set()
        return place

    def leave(self, id: Hashable, place: Any) -> None:
        with self._lock:
            line = self._lines[id]
            line.remove(place)
            if line:
                line[0].set()
            else:
                del self._lines[id]
