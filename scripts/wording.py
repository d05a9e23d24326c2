"""For make lint: finds the habits of scripts/habits.txt in what users read (pages, comments of SQL objects, errors, notices
and settings) and in the comments of sources. Prints each with its place; ends with 1 if there is any."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
HASH = r"(?:^|(?<=\s))#(?=\s)(.*)$"
# What users read: the files, and the text in a match's group.
FOR_USERS = [
    # Prose: a group that begins where code or a link's target ends.
    (["*.md"], r"^```[\s\S]*?^```$|^    .*?$|(?P<ticks>`+)(?!`)[\s\S]*?(?<!`)(?P=ticks)(?!`)|(?<=\]\()[^)]*(?=\))|([^`\](]+)"),
    (["sql/*.sql"], r"(?:COMMENT ON [^;]*? IS|RAISE \w+|DETAIL =|HINT =|format\()\s*'((?:[^']|'')*)'"),
    (["src/*.rs", "crates/*/src/*.rs", ":!*tests*"], r"^\s*//.*$|#\[cfg\(test\)\]\nmod [\s\S]*|r#\"([\s\S]*?)\"#|(?<!')\"((?:[^\"\\]|\\[\s\S])*)\""),
]
# Comments, in a group; strings match without one.
COMMENTS = [
    (["*.rs"], r"r#\"[\s\S]*?\"#|\"(?:[^\"\\]|\\[\s\S])*\"|'(?:[^'\\\n]|\\.[^']*)'|//[/!]?(.*)"),
    (["*.js", "*.mjs", "*.cjs", "*.ts", "*.cts", "*.mts", "*.tsx", "*.go", "*.css"], r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|/\*([\s\S]*?)\*/|//(.*)"),
    (["*.sql", "*.spec"], rf"'(?:[^']|'')*'|--(.*)|{HASH}"),
    (["*.py"], rf"^\s*\"\"\"([\s\S]*?)\"\"\"|{HASH}"),
    (["*.sh", "*.rb", "*.yml", "*.toml", "*.conf", "*Dockerfile", "Makefile", "scripts/*", ".ci/*", "*/run", "*/try/build", ":!*.py"], HASH),
]


def only(pattern, whole):
    """The text in the groups of the matches, where it is in the file; the rest as dots."""
    parts, end = [], 0
    for found in re.finditer(pattern, whole, re.M):
        group = found.lastindex
        if group and found.re.groupindex.get("ticks") != group:
            parts += [re.sub(r"\S", ".", whole[end : found.start()]), " " * (found.start(group) - found.start()), found[group]]
            end = found.end(group)
    return "".join(parts) + re.sub(r"\S", ".", whole[end:])


def main():
    lines = (REPOSITORY / "scripts/habits.txt").read_text().splitlines()
    allowed = [r"\s+".join(map(re.escape, line[1:].split())) for line in lines if line.startswith("!")]
    habits = [line.split("\t") for line in lines if "\t" in line]
    for_users, faults = [line.split("\t") for line in lines[: lines.index("[comments]")] if "\t" in line], 0
    for patterns, pattern, refused in [(*each, for_users) for each in FOR_USERS] + [(*each, habits) for each in COMMENTS]:
        for file in subprocess.run(["git", "ls-files", *patterns], capture_output=True, check=True, text=True, cwd=REPOSITORY).stdout.split():
            text = only(pattern, (REPOSITORY / file).read_text())
            # Not what is code or allowed; a string of Rust goes on after a backslash.
            text = re.sub("|".join([r"`[^`]*`", r"\\\n", *allowed]), lambda found: re.sub(r"[^\n]", "_", found[0]), text, flags=re.I)
            for habit, instead in refused:
                for found in re.finditer(habit.replace(" ", r"\s+"), text, re.I):
                    print(f"{file}:{text.count(chr(10), 0, found.start()) + 1}: {' '.join(found[0].split())!r}: {instead}")
                    faults += 1
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
