"""Whether a server answers, even if it refuses the login. PQping knows, but blocks all other threads while it waits."""

from __future__ import annotations

import queue
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from postgres_rate_limit._facts import FACTS

_VERSION = 3 << 16
_STARTING_OR_ENDING = FACTS["not now"]["starting or ending"].encode()


class Server(NamedTuple):
    host: str
    """Its name, its address, or the folder of its socket."""
    port: int
    user: str
    sslnegotiation: str | None = None


def one_answers(servers: Sequence[Server], seconds: float) -> bool:
    """Whether one of them answers in time, and isn't starting or stopping."""
    return _any([partial(_answers, server) for server in servers], time.monotonic() + seconds)


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
        return any(answers.get(timeout=_until(end)) for _ in asks)
    except queue.Empty:
        return False


def _until(end: float) -> float:
    return max(end - time.monotonic(), 0.001)


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
        plain.settimeout(_until(end))
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
                    connection.settimeout(_until(end))
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
