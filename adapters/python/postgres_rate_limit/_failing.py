"""Errors that say "not now", as listed in docs/failing.md: after these a call may go unchecked."""

from __future__ import annotations

import asyncio
import queue
import re
import socket
import ssl
import struct
import sys
import threading
import time
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, Union

from postgres_rate_limit._databases import Address, Server, class_of, left
from postgres_rate_limit._facts import FACTS
from postgres_rate_limit._results import chain, sqlstate

T = TypeVar("T")
OnError = Literal["closed", "open"]

_NOT_NOW = FACTS["not now"]
_STARTING_OR_ENDING = _NOT_NOW["starting or ending"].encode()
# The maximum seconds of a ping, and the seconds that it has even after the call's deadline: with less, a slow answer
# would count as none.
_PING, _LATE_PING = 2.0, 1.0
# Servers that didn't answer a ping, and the times until which they aren't asked again.
_gone: dict[tuple[Server, ...], float] = {}
# The form in which psycopg lists the servers that it has tried, if there are several.
_SHARED = (b"service", b"user", b"sslnegotiation")
_ATTEMPT = re.compile(r"^- host: (.*?), port: (.*?), hostaddr: (None|'[^']*'|b'[^']*'): ", re.MULTILINE)


def checked(given: T, option: str = "on_error", allowed: tuple[str, str] = ("closed", "open")) -> T:
    """The option, if it is one of those allowed."""
    if given not in allowed:
        raise ValueError(f'{option} is {given!r}; allowed: "{allowed[0]}", "{allowed[1]}"')
    return given


def not_now(error: BaseException, address: Callable[[], Address] = lambda: None) -> Union[bool, tuple[Server, ...]]:
    """Whether the error says so; the servers to ask if only a ping distinguishes an outage from a refused login.
    address: theirs, if the error doesn't have it."""
    errors = list(chain(error))
    states = [state for state in map(sqlstate, errors) if state is not None]
    if states:
        return all(
            state in _NOT_NOW["sqlstates"] or (state[:2] == _NOT_NOW["class"] and state not in _NOT_NOW["except"])
            for state in states
        )
    answers = [_without_state(each, address) for each in errors]
    return True in answers or next((each for each in answers if each), False)


def is_gone(servers: tuple[Server, ...], deadline: float | None) -> bool:
    """Whether no server answers, or those that do are starting or stopping. A server that answers has refused the
    login. deadline: by the monotonic clock."""
    now = time.monotonic()
    if now < _gone.get(servers, 0):
        return True
    end = now + (_PING if deadline is None else min(_PING, max(_LATE_PING, deadline - now)))
    if _any([partial(_answers, server) for server in servers], end):
        return False
    _gone[servers] = time.monotonic() + _PING
    return True


def _without_state(error: BaseException, address: Callable[[], Address]) -> Union[bool, Address]:
    if isinstance(error, OSError):
        return _of_system(error)
    if isinstance(error, (asyncio.TimeoutError, class_of("sqlalchemy.exc", "TimeoutError"))):
        return True
    if isinstance(error, class_of("asyncpg", "InterfaceError")):
        return "connection is closed" in str(error)  # one of a pool, that was lost before
    if isinstance(error, class_of("psycopg_pool", "PoolClosed")) or not isinstance(
        error, class_of("psycopg", "OperationalError")
    ):
        return False
    if isinstance(error, (class_of("psycopg_pool", "PoolTimeout"), class_of("psycopg_pool", "TooManyRequests"))):
        return address()
    attempt: Any = getattr(error, "pgconn", None)
    if "Multiple connection attempts failed" in str(error):
        return _of_attempts(str(error), attempt)
    if isinstance(error, class_of("psycopg.errors", "ConnectionTimeout")):
        return True  # the server never answered
    if attempt is None:
        return not str(error).startswith("could not match")  # hosts and ports; the connection was lost
    return _of_options(attempt.info)


def _of_system(error: OSError) -> bool:
    """Whether a connection has failed, not a file needed to make one."""
    if isinstance(error, (ssl.SSLError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)):
        return False
    if error.filename is not None:
        return False
    if isinstance(error, FileNotFoundError):
        return _raised_in(error) in ("asyncio", "uvloop")  # a socket; of the files that SSL needs none has its name
    # asyncpg raises the class itself if the server refuses SSL, and if the connection was lost while it was made.
    return type(error) is not ConnectionError or "connection_lost()" in str(error)


def _raised_in(error: BaseException) -> str:
    """The package that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]


# Addresses.


def of_libpq(given: Mapping[str, Any], conninfo: str = "") -> Address:
    """The address of the servers in the arguments of a connection."""
    psycopg: Any = sys.modules["psycopg"]
    known = {**psycopg.conninfo.conninfo_to_dict(conninfo), **given}
    names = ("host", "hostaddr", "port", *map(bytes.decode, _SHARED))
    return _of_options(_not_connected({name: known[name] for name in names if known.get(name)}).info)


def _not_connected(options: Mapping[str, Any]) -> Any:
    """A connection for which libpq has read options, variables and files, without connecting."""
    psycopg: Any = sys.modules["psycopg"]
    return psycopg.pq.PGconn.connect_start(psycopg.conninfo.make_conninfo("", **options, sslmode="none").encode())


def _of_options(info: Any) -> Address:
    """None: libpq could not read them."""
    options = {option.keyword.decode(): option.val.decode() for option in info if option.val is not None}
    if "port" not in options:
        return None
    hosts, addresses, ports = (options.get(name, "").split(",") for name in ("host", "hostaddr", "port"))
    count = max(len(hosts), len(addresses))
    hosts, addresses, ports = (each * count if len(each) == 1 else each for each in (hosts, addresses, ports))
    try:
        return tuple(
            Server(addr or host or _folder(), int(port or 5432), options.get("user", ""), options.get("sslnegotiation"))
            for host, addr, port in zip(hosts, addresses, ports, strict=True)
        )
    except ValueError:
        return None


def _folder() -> str:
    """The folder in which libpq looks for a server without a host."""
    return str(_not_connected({"host": ""}).host.decode())


def _of_attempts(text: str, attempt: Any) -> Address:
    """The servers that psycopg lists. attempt: the last one."""
    tried = [tuple(map(literal_eval, found)) for found in _ATTEMPT.findall(text)]
    info = () if attempt is None else attempt.info
    known = [(option.keyword, option.val) for option in info if option.keyword in _SHARED and option.val]
    shared = {keyword.decode(): value.decode() for keyword, value in known}
    servers: list[Server] = []
    for host, port, addr in tried:
        given = of_libpq({**shared, "host": host, "port": port, "hostaddr": addr})
        if given is None:
            return None
        servers += given
    return tuple(dict.fromkeys(servers)) or None


# Pings: whether a server answers, even if it refuses the login. PQping knows, but blocks all other threads while it
# waits.

_VERSION = 3 << 16


def _any(asks: Sequence[Callable[[float], bool]], end: float) -> bool:
    """Whether one is true by then. Each has a thread of its own, because looking up a name has no time-out."""
    answers: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def answer(ask: Callable[[float], bool]) -> None:
        try:
            answers.put(ask(end))
        except ssl.SSLError:
            answers.put(True)  # by an alert, or at least something is there
        except (OSError, ValueError):
            answers.put(False)

    for ask in asks:
        threading.Thread(target=answer, args=(ask,), daemon=True).start()
    try:
        return any(answers.get(timeout=left(end)) for _ in asks)
    except queue.Empty:
        return False


def _answers(server: Server, end: float) -> bool:
    if server.host[:1] in "/@":
        family = getattr(socket, "AF_UNIX", None)
        path = f"{server.host}/.s.PGSQL.{server.port}"
        # Windows: Python knows no such sockets, so it may answer.
        return family is None or _hears(server, family, path.replace("@", "\0", 1) if path[0] == "@" else path, end)
    found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    return _any([partial(_hears, server, each[0], each[4]) for each in found], end)


def _hears(server: Server, family: int, address: Any, end: float) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as plain:
        plain.settimeout(left(end))
        plain.connect(address)
        connection: socket.socket = plain
        if server.sslnegotiation == "direct":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["postgresql"])
            connection = context.wrap_socket(plain, server_hostname=server.host)
        with connection:
            body = struct.pack("!i", _VERSION) + b"user\0" + server.user.encode() + b"\0\0"
            connection.sendall(struct.pack("!i", len(body) + 4) + body)
            answer = b""
            try:
                while not _is_whole(answer):
                    connection.settimeout(left(end))
                    part = connection.recv(8192)
                    if not part:
                        break
                    answer += part
            except OSError:
                pass  # the bytes received are an answer
            return answer != b"" and not (answer[:1] == b"E" and b"\0C" + _STARTING_OR_ENDING + b"\0" in answer)


def _is_whole(answer: bytes) -> bool:
    """For an error more than the first byte is needed."""
    if answer[:1] != b"E":
        return answer != b""
    return len(answer) >= 5 and len(answer) > min(struct.unpack("!I", answer[1:5])[0], 8192)
