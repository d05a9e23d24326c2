"""Which errors say "not now", as docs/failing.md lists them: those on which a call may go unchecked."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union

from postgres_rate_limit._results import chain, sqlstate

OnError = Literal["closed", "open"]
Question = Callable[[], bool]

_NOT_NOW = {"25006", "53100", "53200", "53300", "55P03", "57014", "57P01", "57P02", "57P03"}
# Seconds: libpq makes 2 of a shorter one.
_PING = 2
# Servers that didn't answer a ping, until when they aren't asked again.
_gone: dict[str, float] = {}


def checked(on_error: OnError) -> OnError:
    if on_error not in ("closed", "open"):
        raise ValueError(f'on_error is {on_error!r}; allowed: "closed", "open"')
    return on_error


def not_now(error: BaseException, address: Callable[[], str | None] | None = None) -> Union[bool, Question]:
    """Whether the error says so; a question where only a ping distinguishes an outage from a refused login. address:
    that of the server, where the error doesn't have it; None if it isn't known."""
    errors = list(chain(error))
    states = [state for state in map(sqlstate, errors) if state is not None]
    if states:
        # 08P01 is also what PgBouncer makes of a refused login.
        return all(state in _NOT_NOW or (state.startswith("08") and state != "08P01") for state in states)
    found: Union[bool, Question] = False
    for each in errors:
        answer = _without_state(each, address)
        if answer is True:
            return True
        found = found or answer
    return found


def _without_state(error: BaseException, address: Callable[[], str | None] | None) -> Union[bool, Question]:
    if isinstance(error, (ssl.SSLError, PermissionError)):
        return False
    if isinstance(error, (OSError, asyncio.TimeoutError, _class("sqlalchemy.exc", "TimeoutError"))):
        return True
    if isinstance(error, _class("asyncpg", "InterfaceError")):
        return "connection is closed" in str(error)  # one of a pool, that was lost before
    if isinstance(error, _class("psycopg_pool", "PoolClosed")) or not isinstance(
        error, _class("psycopg", "OperationalError")
    ):
        return False
    if isinstance(error, (_class("psycopg_pool", "PoolTimeout"), _class("psycopg_pool", "TooManyRequests"))):
        return (lambda: _no_server(address())) if address is not None else False
    attempt: Any = getattr(error, "pgconn", None)
    if attempt is None or isinstance(error, _class("psycopg.errors", "ConnectionTimeout")):
        return True  # the connection was lost, or the server never answered
    given = {option.keyword.decode(): option.val.decode() for option in attempt.info if option.val is not None}
    return lambda: _no_server(of_libpq(given))


def _class(module: str, name: str) -> Any:
    """A class, or what nothing is an instance of."""
    return getattr(sys.modules.get(module), name, ())


def of_libpq(given: Mapping[str, Any], conninfo: str = "") -> str:
    """The server's address in what a connection is made by."""
    parts: Any = sys.modules["psycopg"].conninfo
    known = {**parts.conninfo_to_dict(conninfo), **given}
    wanted = {name: known[name] for name in ("host", "hostaddr", "port", "service") if known.get(name)}
    made: str = parts.make_conninfo("", **wanted, connect_timeout=_PING)
    return made


def _no_server(address: str | None) -> bool:
    """Whether no server answers, or one that is starting or ending. One that answers has refused the login."""
    if address is None:
        return False
    if time.monotonic() < _gone.get(address, 0):
        return True
    pq: Any = sys.modules["psycopg"].pq
    gone = pq.PGconn.ping(address.encode()) in (pq.Ping.NO_RESPONSE, pq.Ping.REJECT)
    if gone:
        _gone[address] = time.monotonic() + _PING
    return gone
