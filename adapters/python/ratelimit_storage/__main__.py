"""python -m ratelimit_storage install"""

from __future__ import annotations

import argparse
import sys

import psycopg

from ratelimit_storage import install, install_sql

ABOUT = """\
Installs the functions of the extension ratelimit as SQL, for a database that can't have the extension. Run it as the
role that is to own them; run it again to upgrade. It connects to URL, such as
postgresql://owner@db.example.com/shop, or by PGHOST, PGUSER, PGDATABASE, PGPASSWORD and libpq's other environment
variables."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ratelimit_storage")
    command = parser.add_subparsers(required=True, metavar="install").add_parser("install", description=ABOUT)
    command.add_argument("url", nargs="?", default="", metavar="URL")
    command.add_argument("--schema", default="ratelimit", metavar="NAME", help="another schema than ratelimit")
    command.add_argument("--print", action="store_true", help="write the SQL to standard output instead")
    given = parser.parse_args()
    try:
        if given.print:
            sys.stdout.write(install_sql(given.schema))
            return 0
        with psycopg.connect(given.url, autocommit=True) as connection:
            install(connection, given.schema)
            print(f'ratelimit is installed in schema "{given.schema}" of database "{connection.info.dbname}"')
    except (ValueError, psycopg.Error) as error:
        message = error.diag.message_primary if isinstance(error, psycopg.Error) else None
        print(f"error: {message or str(error).strip()}", file=sys.stderr)
        if isinstance(error, psycopg.Error) and error.diag.message_hint:
            print(f"hint: {error.diag.message_hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
