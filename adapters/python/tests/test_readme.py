"""What `python -m build` makes, installed into an empty environment by the README's lines; its examples, word by word."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from pathlib import Path

import httpx
import psycopg
import pytest
from conftest import ON_FILE

SOURCE = Path(__file__).parent.parent
CARRIED = [f"postgres_rate_limit/{name}" for name in ("py.typed", "ratelimit.sql", "counters.sql", "facts.json")]
README = (SOURCE / "README.md").read_text()


def blocks(language):
    return re.findall(f"```{language}\n(.*?)\n```", README, re.S)


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **options).stdout


@pytest.fixture
def database():
    owner = psycopg.connect("user=postgres dbname=postgres", autocommit=True)
    owner.execute("CREATE DATABASE readme")
    yield owner
    owner.execute("DROP DATABASE readme WITH (FORCE)")
    owner.execute("DROP ROLE app")
    owner.close()


@pytest.fixture
def package(tmp_path):
    # The wheel is built from the sdist.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, SOURCE)
    (sdist,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(sdist) as archive:
        names = [Path(*Path(name).parts[1:]) for name in archive.getnames()]
    modules = {path.relative_to(SOURCE) for path in SOURCE.glob("postgres_rate_limit/*.py")} | {*map(Path, CARRIED)}
    mine = {path.relative_to(SOURCE) for path in SOURCE.glob("tests/**/*") if path.suffix in (".py", ".json")}
    others = {*map(Path, ("LICENSE", "README.md", "requirements.txt", "backend.py", "pyproject.toml", "PKG-INFO"))}
    assert {name for name in names if name.suffix or name in others} == modules | mine | others
    with zipfile.ZipFile(wheel) as archive:
        held = {Path(name) for name in archive.namelist()}
    assert {name for name in held if ".dist-info" not in str(name)} == modules
    return wheel


def prepare_database(programs):
    """As the README says, as its owner: the extension's way, or the file's."""
    extension, file = blocks("sql")
    if ON_FILE:
        python, *install = shlex.split(blocks("sh")[2])
        run(programs / python, *install, env={**os.environ, "PGUSER": "postgres", "PGDATABASE": "readme"})
    with psycopg.connect("user=postgres dbname=readme", autocommit=True) as connection:
        connection.execute(file if ON_FILE else extension)


def test_the_package_is_installed_and_the_readme_is_right(database, package, tmp_path, monkeypatch):
    assert not re.search(r"\]\((?!https://)", README), "a link that is dead outside of the repository"
    first, second, _ = map(shlex.split, blocks("sh"))
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    # Of others the versions that all is tested with.
    install = (programs / "pip", "install", "-q", "--disable-pip-version-check", "-c", SOURCE / "requirements.txt")

    # It needs nothing else to be imported, to be typed and to print its SQL.
    run(*install, package)
    assert json.loads(run(programs / "pip", "list", "--format=json", "--exclude=pip", "--exclude=setuptools"))[1:] == []
    run(programs / "python", "-c", "import postgres_rate_limit as p; p.RateLimiter({'a': p.token_bucket(1, p.MINUTE)})")
    command = (programs / "python", "-m", "postgres_rate_limit", "install")
    assert run(*command, "--print") == (SOURCE / CARRIED[1]).read_text()
    missing = subprocess.run(command, text=True, stderr=subprocess.PIPE)
    assert (missing.returncode, missing.stderr.splitlines()[0]) == (1, "error: psycopg is missing")

    for pip, word, ours, *others in (first, second):
        name, extra = re.fullmatch(r"([\w-]+)(\[[\w,-]+\])", ours).groups()
        assert (pip, word, name) == ("pip", "install", "postgres-rate-limit")
        run(*install, f"{package}{extra}", *others)
    prepare_database(programs)
    monkeypatch.setenv("PGUSER", "app")
    monkeypatch.setenv("PGDATABASE", "readme")
    (tmp_path / "client.py").write_text(blocks("python")[0])
    said = [run(programs / "python", tmp_path / "client.py") for _ in range(4)]
    assert said[:3] == [""] * 3 and re.fullmatch(r"try again in \d+ seconds\n", said[3]), said

    (tmp_path / "app.py").write_text(blocks("python")[1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [programs / "flask", "--app", "app", "run", "--port", str(port)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as app:
        try:
            assert get(app, port).headers["X-RateLimit-Remaining"] == "99"
            # As by a restart of the server.
            ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'app'"
            assert database.execute(ended).fetchall() == [(True,)]
            answer = get(app, port)
            assert (answer.status_code, answer.text) == (200, "hello")
            assert answer.headers["X-RateLimit-Remaining"] == "98"
        finally:
            app.kill()


def get(app, port):
    while True:
        assert app.poll() is None, app.stderr.read()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/")
        except httpx.ConnectError:
            time.sleep(0.05)  # it does not listen yet
