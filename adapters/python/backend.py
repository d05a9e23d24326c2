"""Builds the package with flit; in a clone of the repository it first makes ratelimit.sql, which goes into it."""

import os
import shutil
import subprocess
from pathlib import Path

from flit_core import buildapi

HERE = Path(__file__).resolve().parent
FILE = HERE / "postgres_rate_limit" / "ratelimit.sql"


def _with_file(build):
    def built(*arguments, **others):
        plain = HERE.parents[1] / "scripts" / "plain"
        if HERE.parent.name == "adapters" and plain.is_file():
            # A SCHEMA of the caller's is not for the package.
            environment = {name: value for name, value in os.environ.items() if name != "SCHEMA"}
            subprocess.run([plain], check=True, env=environment)
            shutil.copy(plain.parents[1] / "dist" / "ratelimit.sql", FILE)
        if not FILE.is_file():
            raise FileNotFoundError(f"there is no {FILE}: make plain in the repository makes it, as dist/ratelimit.sql")
        return build(*arguments, **others)

    return built


build_wheel = _with_file(buildapi.build_wheel)
build_sdist = _with_file(buildapi.build_sdist)
build_editable = _with_file(buildapi.build_editable)
get_requires_for_build_wheel = buildapi.get_requires_for_build_wheel
get_requires_for_build_sdist = buildapi.get_requires_for_build_sdist
get_requires_for_build_editable = buildapi.get_requires_for_build_editable
