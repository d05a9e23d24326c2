"""python -m postgres_rate_limit install"""

from __future__ import annotations

import argparse
import sys

from postgres_rate_limit import install, install_sql

ABOUT = """\
Installs the functions of the extension ratelimit as SQL, for a database that can't have the extension. Run it as the
role that is to own them; run it again to upgrade. It connects to URL, such as
postgresql://owner@db.example.com/shop, or by PGHOST, PGUSER, PGDATABASE, PGPASSWORD and libpq's other environment
variables."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m postgres_rate_limit")
    command = parser.add_subparsers(required=True, metavar="install").add_parser("install", description=ABOUT)
    command.add_argument("url", nargs="?", default="", metavar="URL")
    command.add_argument("--schema", default="ratelimit", metavar="NAME", help="another schema than ratelimit")
    command.add_argument("--print", action="store_true", help="write the SQL to standard output instead")
    given = parser.parse_args()
    if given.print:
        try:
            sys.stdout.write(install_sql(given.schema))
        except ValueError as error:
            sys.exit(f"error: {error}")
        return
    try:
        import psycopg
    except ImportError:
        sys.exit(
            "error: psycopg is missing\nhint: pip install 'postgres-rate-limit[binary]', or run what --print writes"
        )
    try:
        with psycopg.connect(given.url, autocommit=True) as connection:
            install(connection, given.schema)
            print(f'ratelimit is installed in schema "{given.schema}" of database "{connection.info.dbname}"')
    except ValueError as error:
        sys.exit(f"error: {error}")
    except psycopg.Error as error:
        hint = f"\nhint: {error.diag.message_hint}" if error.diag.message_hint else ""
        sys.exit(f"error: {error.diag.message_primary or str(error).strip()}{hint}")


if __name__ == "__main__":
    main()
