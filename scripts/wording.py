"""For make lint: finds the habits of scripts/habits.txt in what users read (pages, comments of SQL objects, errors, notices
and settings) and in the comments of sources. Prints each with its place; ends with 1 if there is any."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "adapters/*/README.md", "playground/README.md", "playground/try/README.md"]
CODE = re.compile(r"^```.*?^```$|^    .*?$|(`+)(?!`).*?(?<!`)\1(?!`)|(?<=\]\()[^)]*(?=\))", re.M | re.S)

# What users read: the group of a match.
SQL_TEXT = r"(?:COMMENT ON [^;]*? IS|RAISE \w+|DETAIL =|HINT =|format\()\s*'((?:[^']|'')*)'"
RUST_TEXT = r'(?m:^\s*//.*?$)|r#"(.*?)"#|(?<!\')"((?:[^"\\]|\\.)*)"'
TEXTS = [(["sql/*.sql", ":!sql/install/"], SQL_TEXT), (["src/*.rs", "crates/*/src/*.rs", ":!*tests*"], RUST_TEXT)]

# Comments: the group of a match; strings match without one.
HASH = r"(?m:(?:^|(?<=\s))#(?=\s)(.*)$)"
SLASHES = r"//[/!]?(.*)"
STAR = r"/\*(?s:(.*?))\*/"
COMMENTS = [
    (["*.rs"], rf"r#\"(?s:.*?)\"#|\"(?:[^\"\\]|\\(?s:.))*\"|'(?:[^'\\\n]|\\.[^']*)'|{SLASHES}"),
    (["*.js", "*.mjs", "*.cjs", "*.ts", "*.cts", "*.go", "*.css"], rf"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|{STAR}|{SLASHES}"),
    (["*.sql", "*.spec", ":!sql/install/", ":!*version-1.sql"], rf"'(?:[^']|'')*'|--(.*)|{HASH}"),
    (["*.py"], rf"(?m:^\s*\"\"\"(?s:(.*?))\"\"\")|{HASH}"),
    (["*.sh", "*.rb", "*.yml", "*.yaml", "*.toml", "*.conf", "*Dockerfile", "Makefile", "scripts/*", ".ci/*", "*/run", "*/build"], HASH),
    (["*.lua"], r"--(.*)"),
]


def files(patterns):
    listed = subprocess.run(["git", "ls-files", *patterns], capture_output=True, check=True, text=True, cwd=REPOSITORY).stdout
    return [(file, (REPOSITORY / file).read_text()) for file in listed.split() if (REPOSITORY / file).is_file()]


def blank(found):
    """As long as what it replaces, so that offsets stay."""
    return re.sub(r"\S", " ", found[0])


def group(found):
    return next((n for n, text in enumerate(found.groups(), 1) if text is not None), None)


def texts():
    """Yields what users read: file, offset, text of the whole file, text."""
    for file, whole in files(PAGES):
        yield file, 0, whole, CODE.sub(blank, whole)
    for patterns, pattern in TEXTS:
        for file, whole in files(patterns):
            for found in re.finditer(pattern, whole.partition("#[cfg(test)]\nmod ")[0], re.S):
                if group(found):
                    yield file, found.start(group(found)), whole, found[group(found)]


def comments():
    """Yields the comments in the same way; lines that follow each other are one comment."""
    seen = set()
    for patterns, pattern in COMMENTS:
        for file, whole in files(patterns):
            if file in seen or (patterns[-1] == "*/build" and not re.match("#!.*(bash|sh)|(?s:.{0,300})#", whole)):
                continue
            seen.add(file)
            block, start, end = "", 0, -1
            for found in re.finditer(pattern, whole):
                if not group(found):
                    continue
                here, text = found.start(group(found)), found[group(found)]
                between = whole[end:here]
                if block and between.count("\n") == 1 and not re.search(r"\w", between):
                    block += re.sub(r"\S", " ", between) + text
                else:
                    if block:
                        yield file, start, whole, block
                    block, start = text, here
                end = found.end(group(found))
            if block:
                yield file, start, whole, block


def main():
    lines = (REPOSITORY / "scripts/habits.txt").read_text().splitlines()
    allowed = [line[1:].strip() for line in lines if line.startswith("!")]
    habits = [line.split("\t") for line in lines if line and line[0] not in "#!["]
    everywhere = [line.split("\t") for line in lines[: lines.index("[comments]")] if line and line[0] not in "#!["]
    faults = 0
    for which, found_texts in ((everywhere, texts()), (habits, comments())):
        for file, offset, whole, text in found_texts:
            # Phrases go on in the next line; a string of Rust after a backslash.
            flat = re.sub(r"\\\n|\s|`[^`]*`", lambda found: " " * len(found[0]), text)
            for phrase in allowed:
                flat = re.sub(r"\s+".join(map(re.escape, phrase.split())), blank, flat, flags=re.I)
            for habit, instead in which:
                for found in re.finditer(habit.replace(" ", r"\s+"), flat, re.I):
                    line = whole.count("\n", 0, offset + found.start()) + 1
                    print(f"{file}:{line}: {' '.join(found[0].split())!r}: {instead}")
                    faults += which is everywhere  # those of comments are listed only, for now
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
