"""The functions of the extension ratelimit as a file of SQL, for databases that can't have the extension."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

# The schema, wherever the file names it, but not the extension and settings of that name.
_SCHEMA = re.compile(r"(?<!extension )(?<!extname = ')\bratelimit\b(?!\.(clock|error_style)\b)")


def install_sql(schema: str = "ratelimit") -> str:
    """The SQL that installs the functions into a schema, as one string for a migration."""
    if not re.fullmatch(r"(?!pg_|public$)[a-z_][a-z0-9_]{0,62}", schema):
        raise ValueError(f"schema is {schema!r}; allowed: lower-case letters, digits and _, but not public")
    text = files("ratelimit_storage").joinpath("ratelimit.sql").read_text("utf-8")
    head = "".join(re.findall(r"\A(?:--.*\n)*", text))
    return head + _SCHEMA.sub(schema, text[len(head) :])


def install(connection: Any, schema: str = "ratelimit") -> None:
    """Runs install_sql on a connection of psycopg, or of another driver that has cursors, in its transaction."""
    text = install_sql(schema)
    cursor = connection.cursor()
    try:
        cursor.execute(text)
    finally:
        cursor.close()
