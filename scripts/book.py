"""book.py FOLDER   writes what mdBook reads for make docs: docs/, with the files of the repository that pages include,
such as the README, and that they link to, such as programs and tests. Links are rewritten for the book."""

import posixpath
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = REPOSITORY / "docs"
INCLUDE = re.compile(r"\{\{#include (\S+)\}\}\n?")
# A block or a span of code, in which nothing is a link; or the target of a link or an image.
CODE_OR_LINK = re.compile(r"(?P<code>^```.*?^```$|(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`))|(?<=\]\()(?P<link>[^)\s]+)(?=\))", re.M | re.S)


def included():
    """Maps a file outside docs/ to the page that includes it: {"README.md": "index.md"}."""
    whole = {page.name: INCLUDE.fullmatch(page.read_text()) for page in PAGES.glob("*.md")}
    return {posixpath.normpath(f"docs/{found[1]}"): name for name, found in whole.items() if found}


def stage(folder):
    shutil.copytree(PAGES, folder)
    pages_of = included()

    def for_the_book(file, link):
        """Rewrites a link in a file of the repository for a page of the book."""
        path, mark, anchor = link.partition("#")
        if urlsplit(link).scheme or not path:
            return link
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
        if target in pages_of:
            return pages_of[target] + mark + anchor
        if target == "docs/SUMMARY.md":
            return "toc.html"
        if target == "playground/try/README.md":
            return "try/index.html"  # scripts/docs puts the page there
        if target.startswith("docs/"):
            return target.removeprefix("docs/") + mark + anchor
        # mdBook leaves out Markdown that is not a page, and browsers don't show programs: link to a text file.
        text = f"files/{target.removesuffix('.md')}.txt"
        (folder / text).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / target, folder / text)
        return text

    def rewritten(file):
        def replace(found):
            return for_the_book(file, found["link"]) if found["link"] else found[0]

        return CODE_OR_LINK.sub(replace, (REPOSITORY / file).read_text())

    for page in folder.glob("*.md"):
        if page.name not in pages_of.values():
            page.write_text(rewritten(f"docs/{page.name}"))
    for file, page in pages_of.items():
        (folder / page).write_text(rewritten(file))


if __name__ == "__main__":
    stage(Path(sys.argv[1]).resolve())
