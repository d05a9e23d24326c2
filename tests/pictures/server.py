"""What the extension answers, asked of a running server.

Owns a database of its own there, for as long as the pictures are drawn. Draws nothing.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import psycopg
from psycopg.rows import namedtuple_row

DATABASE = "pictures"


@dataclass(frozen=True)
class Request:
    at: float  # seconds since the beginning of the picture
    count: float = 1
    reserve: bool = False


class Server:
    """A server with the extension, behind a unix socket in a folder."""

    def __init__(self, socket):
        self.socket = socket
        self.drop()
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        self.main = self.session()
        self.main.execute("CREATE EXTENSION ratelimit")

    def drop(self):
        """Drops the database, which an earlier run may have left."""
        with self.connect("postgres") as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")

    def connect(self, database):
        return psycopg.connect(
            host=self.socket, port=5432, user="postgres", dbname=database, autocommit=True, row_factory=namedtuple_row
        )

    def session(self):
        session = self.connect(DATABASE)
        session.execute("SET timezone = 'UTC'")
        return session

    def rows(self, sql):
        return self.main.execute(sql).fetchall()

    def replay(self, config, requests, begin, seconds, step=1):
        """What a limit answers to requests: answers, with times in seconds since the beginning; level, the tokens that
        it holds every step seconds, a millisecond before that, and at each request; turns, when it says that a window
        ends, or that it is full."""
        asked = [Request(at, 0) for n in range(int(seconds / step) + 1) for at in (n * step - 0.001, n * step)]
        # A count of 0 takes nothing, and asks for the level; that at the time of a request is asked before it.
        log = sorted([*asked[1:], *requests], key=lambda request: (request.at, request.count > 0))
        values = ", ".join(f"({n}, {row.at}, {row.count}, {row.reserve})" for n, row in enumerate(log))
        rows = self.rows(
            f"""SELECT at::float8, count, (a).ok, (a).remaining,
                extract(epoch FROM (a).retry_at - begin)::float8 AS retry_at,
                extract(epoch FROM (a).reset_at - begin)::float8 AS reset_at
            FROM (SELECT n, at, count, begin, rl_replay({config}, begin + at * interval '1 second', count, reserve)
                    OVER (ORDER BY n) AS a
                FROM (VALUES {values}) AS log (n, at, count, reserve),
                    (SELECT timestamptz '{begin}' AS begin) AS _) AS replayed
            ORDER BY n"""
        )
        return SimpleNamespace(
            answers=[row for row in rows if row.count > 0],
            level=straight([(row.at, row.remaining) for row in rows]),
            turns=sorted({row.reset_at for row in rows if row.reset_at is not None and 0 < row.reset_at <= seconds}),
        )


def straight(points):
    """Leaves out points on a straight line between their neighbours."""
    points = list(dict.fromkeys(points))
    between = lambda a, b, c: abs((b[1] - a[1]) * (c[0] - b[0]) - (c[1] - b[1]) * (b[0] - a[0])) < 1e-6
    inner = [b for a, b, c in zip(points, points[1:], points[2:]) if not between(a, b, c)]
    return [points[0], *inner, points[-1]]
