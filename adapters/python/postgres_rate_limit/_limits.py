"""Windows and addresses in the terms of the package limits."""

from __future__ import annotations

import select
import time
from typing import Any
from urllib.parse import unquote
from weakref import WeakSet

import psycopg
from limits.errors import ConfigurationError
from limits.limits import GRANULARITIES
from psycopg.conninfo import conninfo_to_dict

from postgres_rate_limit._databases import until
from postgres_rate_limit._results import Value
from postgres_rate_limit._waits import after_fork

# The strategies have limits of their own, so that a key may be used with several of them.
FIXED, MOVING, SLIDING = STRATEGIES = "fixed-window", "moving-window", "sliding-window-counter"
KINDS = {
    FIXED: {"kind": "fixed window", "start": "first request"},
    MOVING: {"kind": "sliding log"},
    SLIDING: {"kind": "sliding window"},
}
# The maximum number of entries in a sliding log.
_MAX_LOG = 10_000
# The maximum number of hits in a window if its key doesn't show the limit: the extension compares with a tolerance of a
# billionth of it, which is then less than a hit.
MAX_UNTOLD = 10**8
# The end of a block without one, in epoch milliseconds.
_ENDLESS = 253_402_128_000_000


def impatient(connection_class: type[Any], timeout: float) -> type[Any]:
    """Connections, of either kind, with a limit to all waits for the server."""

    class Impatient(connection_class):  # type: ignore[misc]
        def wait(self, steps: Any, *arguments: Any, **others: Any) -> Any:
            return super().wait(until(time.monotonic() + timeout, self, steps), *arguments, **others)

    return Impatient


def has_news(connection: Any) -> bool:
    """Returns whether the server has sent something unasked, such as the end of the connection. Sends nothing."""
    if not hasattr(select, "poll"):
        return True  # not on Windows
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def log_rate(limit: int) -> int:
    if limit > _MAX_LOG:
        raise ConfigurationError(
            f"the limit is {limit}; allowed with moving-window: at most {_MAX_LOG}, an entry a hit; "
            "use sliding-window-counter"
        )
    return max(limit, 1)


def counter_rate(limit: int) -> float:
    """limits rounds the use down, so a hit passes until the use and its cost reach the limit plus one."""
    return (limit + 1) * (1 - 2e-9)  # by more than what the extension tolerates


def here(seconds: float) -> float:
    """Returns the time in this number of seconds by this process's clock, with which limits and frameworks compare
    it."""
    return time.time() + seconds


def fixed_window(value: Value | None, expiry: int) -> tuple[int, float]:
    """The hits, and the seconds until the window ends, or a blocked key may call again."""
    if value is None:
        return 0, expiry
    config, state, now, blocked = value["config"], value["state"], value["now"], value["blockedUntil"]
    left = max(0, state["ts"] + config["period"] - now) if state else 0
    hits = int(config["capacity"] - state["value"]) if state and left else 0
    if blocked is not None:
        return hits, expiry if blocked >= _ENDLESS else max(blocked - now, left) / 1000
    return hits, left / 1000 if hits else 0


def moving_window(value: Value | None, expiry: int) -> tuple[float, int]:
    state, now = (value["state"], value["now"] / 1000) if value else (None, 0)
    taken = [ms / 1000 for ms in state["log"] if ms / 1000 > now - expiry] if state else []
    return here(taken[0] - now if taken else 0), len(taken)


def sliding_window(value: Value | None, expiry: int) -> tuple[int, float, int, float]:
    """The counts of the window before and of this one, each with the seconds until it no longer counts."""
    if value is None:
        return 0, 0.0, 0, float(expiry)
    state, now = value["state"], value["now"] / 1000
    begin, previous, current = now // expiry * expiry, 0, 0
    if state:
        passed = round((begin - state["ts"] / 1000) / expiry)
        if passed <= 0:
            begin, previous, current = state["ts"] / 1000, int(state["prior"]), int(state["value"])
        elif passed == 1:
            previous = int(state["value"])
    left = min(begin + expiry - now, expiry)
    # With two whole windows limits would count none left.
    return previous, left if previous else 0.0, current, min(left, expiry - 1e-6) + expiry


def told(key: str) -> tuple[int, int] | None:
    """Reads limit and expiry from the end of a key, as RateLimitItem.key_for writes them."""
    try:
        _, limit, multiples, granularity = key.rsplit("/", 3)
        return int(limit), GRANULARITIES[granularity].GRANULARITY.seconds * int(multiples)
    except (ValueError, KeyError):
        return None


def parse_uri(uri: str) -> tuple[str, dict[str, str]]:
    """The address for libpq, and our options."""
    address, _, query = uri.partition("?")
    options, theirs = {}, []
    for field in filter(None, query.split("&")):
        option, _, value = field.partition("=")
        if option in ("name", "store"):
            options[option] = unquote(value)
        else:
            theirs.append(field)
    conninfo = "postgresql:" + address.partition(":")[2] + "?" * bool(theirs) + "&".join(theirs)
    try:
        conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(f"the address of the database can't be read: {error}") from error
    return conninfo, options


# A forked child has a pool of its own: on its parent's connections it would read the parent's answers. The parent's
# pool stays referenced, so that none of them is closed here.
all_storages: WeakSet[Any] = WeakSet()
_of_parents: list[Any] = []


def _leave_pool(storage: Any) -> None:
    _of_parents.append(storage.pool)
    storage.pool = storage._make_pool()


after_fork(all_storages, _leave_pool)
