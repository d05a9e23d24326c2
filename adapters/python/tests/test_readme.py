"""What `python -m build` makes, installed into an empty environment by the README's line; and its example, word by word."""

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
CARRIED = ("ratelimit_storage/py.typed", "ratelimit_storage/ratelimit.sql")
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
    mine = [path.relative_to(SOURCE) for path in SOURCE.glob("tests/*.py")]
    wanted = {*mine, *map(Path, ("LICENSE", "README.md", "requirements.txt", "backend.py", *CARRIED))}
    assert wanted <= set(names)
    with zipfile.ZipFile(wheel) as archive:
        assert set(CARRIED) <= set(archive.namelist())
    return wheel


def prepare_database(programs):
    """As the README says, as its owner: the extension's way, or the file's."""
    extension, file = blocks("sql")
    if ON_FILE:
        python, *install = shlex.split(blocks("sh")[1])
        run(programs / python, *install, env={**os.environ, "PGUSER": "postgres", "PGDATABASE": "readme"})
    with psycopg.connect("user=postgres dbname=readme", autocommit=True) as connection:
        connection.execute(file if ON_FILE else extension)


def test_the_package_is_installed_and_the_readme_is_right(database, package, tmp_path, monkeypatch):
    assert not re.search(r"\]\((?!https://)", README), "a link that is dead outside of the repository"
    pip, install, ours, *others = shlex.split(blocks("sh")[0])
    name, extra = re.fullmatch(r"([\w-]+)(\[\w+\])", ours).groups()
    assert (pip, install, name) == ("pip", "install", "ratelimit-storage")
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    # Of others the versions that all is tested with.
    quiet = ("-q", "--disable-pip-version-check", "-c", SOURCE / "requirements.txt")
    run(programs / pip, install, *quiet, f"{package}{extra}", *others)

    prepare_database(programs)
    (tmp_path / "app.py").write_text(blocks("python")[0])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("PGUSER", "app")
    monkeypatch.setenv("PGDATABASE", "readme")
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
