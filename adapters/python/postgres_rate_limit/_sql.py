"""The functions of the extension ratelimit as a file of SQL, for databases that can't have the extension."""

from __future__ import annotations

import re
from contextlib import closing
from importlib.resources import files
from typing import Any

# The forms in which the file writes its schema, and what follows them, as in scripts/plain. Elsewhere the name is the
# extension's or a setting's.
_SCHEMA = (("ratelimit.r", ".r"), ("ratelimit._", "._"), ('"ratelimit"', ""))


def install_sql(schema: str = "ratelimit") -> str:
    """The SQL that installs the functions into a schema, as one string for a migration."""
    if not re.fullmatch(r"(?!pg_|public$)[a-z_][a-z0-9_]{0,62}", schema):
        raise ValueError(f"schema is {schema!r}; allowed: lower-case letters, digits and _, but not public")
    text = files("postgres_rate_limit").joinpath("ratelimit.sql").read_text("utf-8")
    if schema != "ratelimit":
        for written, rest in _SCHEMA:
            text = text.replace(written, f'"{schema}"{rest}')  # quoted, since the name may be a word of SQL
    return text


def install(connection: Any, schema: str = "ratelimit") -> None:
    """Runs install_sql on a connection of psycopg, or of another driver with cursors, in its transaction; also on
    SQLAlchemy's driver_connection over asyncpg, as in Alembic's migrations. With asyncpg itself: `await
    connection.execute(install_sql())`."""
    text = install_sql(schema)
    with closing(connection.cursor()) as cursor:
        if hasattr(connection, "run_async"):  # its cursors prepare, which takes one command alone
            cursor.execute("SELECT 1")  # which begins the transaction
            connection.run_async(lambda driver: driver.execute(text))
        else:
            cursor.execute(text)
