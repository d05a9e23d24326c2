"""What the extension answers, asked of a running server through psql.

Owns a database of its own there, for as long as the pictures are drawn. Draws nothing.
"""

import json
import subprocess
from dataclasses import dataclass

DATABASE = "pictures"


@dataclass(frozen=True)
class Request:
    at: float  # seconds since the beginning of the picture
    count: float = 1
    reserve: bool = False


@dataclass(frozen=True)
class Answer:
    """An rl_result, its times in seconds since the beginning of the picture."""

    at: float
    count: float
    ok: bool
    remaining: float
    retry_at: float | None
    reset_at: float | None


@dataclass(frozen=True)
class Replay:
    answers: list  # one for each request
    level: list  # (seconds, tokens) in the order of time, twice where the level jumps
    turns: list  # the times at which the limit says that a window turns, or that it is full


class Session:
    """A psql that stays connected, and answers one statement after the other."""

    END = "-- end of the answer"

    def __init__(self, server, database):
        command = ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", server, "-U", "postgres", "-d", database]
        self.psql = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, sql):
        """Runs statements; returns the lines that they print."""
        self.psql.stdin.write(f"{sql};\n\\echo {self.END}\n")
        self.psql.stdin.flush()
        lines = []
        for line in self.psql.stdout:
            if line.rstrip("\n") == self.END:
                return lines
            lines.append(line.rstrip("\n"))
        raise SystemExit(f"error: psql ended in {sql}")

    def rows(self, sql):
        """The rows of a query, each as a dict."""
        return [json.loads(line) for line in self.run(f"SELECT row_to_json(row) FROM ({sql}) AS row")]

    def close(self):
        self.psql.stdin.close()
        self.psql.wait()


class Server:
    """A server with the extension, behind a unix socket in a folder."""

    def __init__(self, socket):
        self.socket = socket
        self.sessions = []

    def __enter__(self):
        self.maintain("CREATE DATABASE " + DATABASE)
        self.main = self.session()
        self.main.run("CREATE EXTENSION ratelimit")
        return self

    def __exit__(self, *_):
        for session in self.sessions:
            session.close()
        self.maintain()

    def maintain(self, *statements):
        """Drops the database, which an earlier run may have left, and runs more."""
        session = Session(self.socket, "postgres")
        for statement in ["SET client_min_messages = error", "DROP DATABASE IF EXISTS " + DATABASE, *statements]:
            session.run(statement)
        session.close()

    def session(self):
        session = Session(self.socket, DATABASE)
        self.sessions.append(session)
        session.run("SET timezone = 'UTC'")
        return session

    def replay(self, config, requests, begin, seconds, step=1):
        """What a limit answers to requests, and what it holds between them: every step seconds, and a
        millisecond before, a count of 0, which takes nothing, asks for its level."""
        asked = [Request(at, 0) for n in range(int(seconds / step) + 1) for at in (n * step - 0.001, n * step)]
        # The level at the time of a request is asked before it.
        log = sorted([*asked[1:], *requests], key=lambda request: (request.at, request.count > 0))
        values = ", ".join(f"({n}, {row.at}, {row.count}, {row.reserve})" for n, row in enumerate(log))
        rows = self.main.rows(
            f"""SELECT (a).ok, (a).remaining, extract(epoch FROM (a).retry_at - begin)::float8 AS retry_at,
                extract(epoch FROM (a).reset_at - begin)::float8 AS reset_at
            FROM (SELECT n, begin, rl_replay({config}, begin + at * interval '1 second', count, reserve)
                    OVER (ORDER BY n) AS a
                FROM (VALUES {values}) AS log (n, at, count, reserve),
                    (SELECT timestamptz '{begin}' AS begin) AS _) AS replayed
            ORDER BY n"""
        )
        answers = [Answer(request.at, request.count, **row) for request, row in zip(log, rows, strict=True)]
        return Replay(
            answers=[answer for answer in answers if answer.count > 0],
            level=[(answer.at, answer.remaining) for answer in answers],
            turns=sorted({a.reset_at for a in answers if a.reset_at is not None and 0 < a.reset_at <= seconds}),
        )
