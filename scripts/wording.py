"""For make lint: finds the habits of scripts/habits.txt in texts for users (pages, comments of SQL objects, errors, notices
and settings, also those of the packages) and in the comments and docstrings of sources. Prints each with its place; ends
with 1 if there is any."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
MARK = r"(?:^|(?<=\s))#(?=\s)"
HASH = rf"{MARK}(.*)$"
# The product: the section [product] is for the comments of its sources, and for its READMEs.
PRODUCT = re.compile(r"(src|crates|sql|adapters)/(?!pg_tests)(?!.*/(tests?|bench|benches|examples)/)(?!.*/tests\.rs)")
# Texts for users: the files, and the text in a match's group.
FOR_USERS = [
    # Prose: a group that begins where code or a link's target ends.
    (["*.md"], r"^```[\s\S]*?^```$|^    .*?$|(?P<ticks>`+)(?!`)[\s\S]*?(?<!`)(?P=ticks)(?!`)|(?<=\]\()[^)]*(?=\))|([^`\](]+)"),
    (["sql/*.sql"], r"(?:COMMENT ON [^;]*? IS|RAISE \w+|DETAIL =|HINT =|format\()\s*'((?:[^']|'')*)'"),
    (["src/*.rs", "crates/*/src/*.rs", ":!*tests*"], r"^\s*//.*$|#\[cfg\(test\)\]\nmod [\s\S]*|r#\"([\s\S]*?)\"#|(?<!')\"((?:[^\"\\]|\\[\s\S])*)\""),
    (["adapters/node/src/*"], r"/\*[\s\S]*?\*/|//.*|'((?:[^'\\\n]|\\.)*)'|`((?:[^`\\]|\\[\s\S])*)`"),
    (["adapters/python/postgres_rate_limit/*.py"], rf"^\s*\"\"\"[\s\S]*?\"\"\"|{MARK}.*$|\"\"\"([\s\S]*?)\"\"\"|\"((?:[^\"\\\n]|\\.)*)\"|'((?:[^'\\\n]|\\.)*)'"),
    (["adapters/ruby/lib/*.rb"], rf"{MARK}.*$|\"((?:[^\"\\]|\\[\s\S])*)\""),
]
# Comments, in a group; strings match without one.
COMMENTS = [
    (["*.rs"], r"r#\"[\s\S]*?\"#|\"(?:[^\"\\]|\\[\s\S])*\"|'(?:[^'\\\n]|\\.[^']*)'|//[/!]?(.*)"),
    (["*.js", "*.mjs", "*.cjs", "*.ts", "*.cts", "*.tsx", "*.go", "*.css"], r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|/\*([\s\S]*?)\*/|//(.*)"),
    (["*.sql", "*.spec"], rf"'(?:[^']|'')*'|--(.*)|{HASH}"),
    (["*.py"], rf"^\s*\"\"\"([\s\S]*?)\"\"\"|{HASH}"),
    (["*.sh", "*.rb", "*.yml", "*.toml", "*.conf", "*Dockerfile", "Makefile", "scripts/*", ".ci/*", "*/run", "*/try/build", ":!*.py"], HASH),
]


def only(pattern, whole, rest="."):
    """The text in the groups of the matches, where it is in the file; the rest as dots, between which a sentence begins."""
    parts, end = [], 0
    for found in re.finditer(pattern, whole, re.M):
        group = found.lastindex
        if group and found.re.groupindex.get("ticks") != group:
            parts += [re.sub(r"\S", rest, whole[end : found.start()]), " " * (found.start(group) - found.start()), found[group]]
            end = found.end(group)
    return "".join(parts) + re.sub(r"\S", rest, whole[end:])


def main():
    lines = (REPOSITORY / "scripts/habits.txt").read_text().splitlines()
    allowed = [r"\s+".join(map(re.escape, line[1:].split())) for line in lines if line.startswith("!")]
    sections = lines.index("[comments]"), lines.index("[product]"), len(lines)
    for_users, for_comments, for_product = [[line.split("\t") for line in lines[:end] if "\t" in line] for end in sections]
    faults = 0
    for patterns, pattern, refused in [(*each, for_users) for each in FOR_USERS] + [(*each, for_comments) for each in COMMENTS]:
        for file in subprocess.run(["git", "ls-files", *patterns], capture_output=True, check=True, text=True, cwd=REPOSITORY).stdout.split():
            prose = file.endswith(".md")
            text = only(pattern, (REPOSITORY / file).read_text(), "_" if prose else ".")
            # Not what is code or allowed; a string of Rust goes on after a backslash.
            text = re.sub("|".join([r"`[^`]*`", r"\\\n", *allowed]), lambda found: re.sub(r"[^\n]", "_", found[0]), text, flags=re.I)
            product = (prose or refused is for_comments) and PRODUCT.match(file)
            for habit, instead in for_product if product else refused:
                for found in re.finditer(habit.replace(" ", r"\s+"), text, re.I):
                    words = found[0].lstrip(" \n,.:;!?")
                    print(f"{file}:{text.count(chr(10), 0, found.end() - len(words)) + 1}: {' '.join(words.split())!r}: {instead}")
                    faults += 1
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
