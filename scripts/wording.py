"""For make lint: finds the habits of scripts/habits.txt in what users read, which are the pages, the comments of SQL
objects, and what errors, notices and settings say. Prints each with its place; ends with 1 where there is any."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "adapters/*/README.md", "playground/README.md", "playground/try/README.md"]
SQL = ["sql/*.sql", ":!sql/install/"]
RUST = ["src/*.rs", "crates/*/src/*.rs", ":!*tests*"]

CODE = re.compile(r"^```.*?^```$|^    .*?$|(`+)(?!`).*?(?<!`)\1(?!`)|(?<=\]\()[^)]*(?=\))", re.M | re.S)
SQL_TEXT = re.compile(r"(?:COMMENT ON [^;]*? IS|RAISE \w+|DETAIL =|HINT =|format\()\s*'((?:[^']|'')*)'", re.S)
RUST_COMMENT = re.compile(r"^\s*//.*?$", re.M)
RUST_TEXT = re.compile(r'r#"(.*?)"#|(?<!\')"((?:[^"\\]|\\.)*)"', re.S)


def blank(found):
    """As long as what it replaces, so that lines are counted as they are."""
    return re.sub(r"\S", " ", found[0])


def texts(patterns, within=None, without=None):
    """The texts for users in the files of these patterns: file, offset, text of the whole file, text."""
    for file in subprocess.run(["git", "ls-files", *patterns], capture_output=True, check=True, text=True, cwd=REPOSITORY).stdout.split():
        whole = (REPOSITORY / file).read_text()
        visible = without.sub(blank, whole) if without else whole
        if within:
            visible = visible.partition("#[cfg(test)]\nmod ")[0]
            for found in within.finditer(visible):
                group = next((n for n, text in enumerate(found.groups(), 1) if text is not None), 0)
                yield file, found.start(group), whole, found[group]
        else:
            yield file, 0, whole, visible


def main():
    lines = (REPOSITORY / "scripts/habits.txt").read_text().splitlines()
    allowed = [line[1:].strip() for line in lines if line.startswith("!")]
    habits = [line.split("\t") for line in lines if line and line[0] not in "#!"]
    faults = 0
    for file, offset, whole, text in [*texts(PAGES, without=CODE), *texts(SQL, SQL_TEXT), *texts(RUST, RUST_TEXT, RUST_COMMENT)]:
        # Phrases go on in the next line; a string of Rust after a backslash.
        flat = re.sub(r"\\\n|\s", lambda found: " " * len(found[0]), text)
        for phrase in allowed:
            flat = re.sub(r"\s+".join(map(re.escape, phrase.split())), blank, flat)
        for habit, instead in habits:
            for found in re.finditer(habit.replace(" ", r"\s+"), flat, re.I):
                line = whole.count("\n", 0, offset + found.start()) + 1
                print(f"{file}:{line}: {' '.join(found[0].split())!r}: {instead}")
                faults += 1
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
