"""Builds the package with flit; in a clone of the repository it first brings along what goes into it from there:
ratelimit.sql, which it makes, and facts.json."""

import os
import shutil
import subprocess
from pathlib import Path

from flit_core import buildapi
from flit_core.buildapi import get_requires_for_build_editable, get_requires_for_build_sdist, get_requires_for_build_wheel

HERE = Path(__file__).resolve().parent
PACKAGE = HERE / "postgres_rate_limit"


def _with_files(build):
    def built(*arguments, **others):
        repository = HERE.parents[1]
        if HERE.parent.name == "adapters" and (repository / "scripts" / "plain").is_file():
            # A SCHEMA of the caller's is not for the package.
            environment = {name: value for name, value in os.environ.items() if name != "SCHEMA"}
            subprocess.run([repository / "scripts" / "plain"], check=True, env=environment)
            shutil.copy(repository / "dist" / "ratelimit.sql", PACKAGE)
            shutil.copy(repository / "adapters" / "facts.json", PACKAGE)
        for file in (PACKAGE / "ratelimit.sql", PACKAGE / "facts.json"):
            if not file.is_file():
                raise FileNotFoundError(f"there is no {file}: build in the repository, which has it")
        return build(*arguments, **others)

    return built


build_wheel = _with_files(buildapi.build_wheel)
build_sdist = _with_files(buildapi.build_sdist)
build_editable = _with_files(buildapi.build_editable)
