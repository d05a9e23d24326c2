"""For make docs, which builds the book with mdBook.

book.py stage FOLDER   writes what mdBook reads: docs/, with the files of the repository that pages include, such as the
                       README, and that they link to, such as programs. Links are written for the book.
book.py check FOLDER   checks the links of the book that mdBook built: each must lead to a file and an anchor of it.
"""

import posixpath
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = REPOSITORY / "docs"
INCLUDE = re.compile(r"\{\{#include (\S+)\}\}\n?")
# A block or a span of code, in which nothing is a link; or the target of a link or an image.
CODE_OR_LINK = re.compile(r"(?P<code>^```.*?^```$|(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`))|(?<=\]\()(?P<link>[^)\s]+)(?=\))", re.M | re.S)


def included():
    """The page of the book that each file stands in which is not in docs/: {"README.md": "index.md"}."""
    whole = {page.name: INCLUDE.fullmatch(page.read_text()) for page in PAGES.glob("*.md")}
    return {posixpath.normpath(f"docs/{found[1]}"): name for name, found in whole.items() if found}


def stage(folder):
    shutil.copytree(PAGES, folder)
    pages_of = included()

    def for_the_book(file, link):
        """A link that stands in a file of the repository, as a page of the book says it."""
        path, mark, anchor = link.partition("#")
        if urlsplit(link).scheme or not path:
            return link
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
        if target in pages_of:
            return pages_of[target] + mark + anchor
        if target == "docs/SUMMARY.md":
            return "toc.html"
        if target == "playground/try/README.md":
            return "try/index.html"  # the page that it describes, which scripts/docs puts there
        if target.startswith("docs/"):
            return target.removeprefix("docs/") + mark + anchor
        # As text, since mdBook leaves out Markdown that is not a page, and browsers don't show programs.
        text = f"files/{target.removesuffix('.md')}.txt"
        (folder / text).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / target, folder / text)
        return text

    def rewritten(file):
        def replace(found):
            return for_the_book(file, found["link"]) if found["link"] else found[0]

        return CODE_OR_LINK.sub(replace, (REPOSITORY / file).read_text())

    for file, page in pages_of.items():
        (folder / page).write_text(rewritten(file))


class Links(HTMLParser):
    """The anchors of a page, and the targets of its links."""

    def __init__(self, page):
        super().__init__()
        self.anchors, self.links = set(), set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def check(folder):
    # print.html has all pages in one, 404.html is served at any address.
    pages = {page: Links(page) for page in folder.rglob("*.html") if page.name not in ("print.html", "404.html", "toc.html")}
    wrong = set()
    count = 0
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.is_file():
                wrong.add(f"{page.name}: {link} leads nowhere")
            elif parts.fragment and (target not in pages or unquote(parts.fragment) not in pages[target].anchors):
                wrong.add(f"{page.name}: {link} names no heading")
    print("\n".join(sorted(wrong)))
    assert count > 100, f"only {count} links found"
    print(f"{len(pages)} pages, {count} links, {len(wrong)} of them broken", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    {"stage": stage, "check": check}[sys.argv[1]](Path(sys.argv[2]).resolve())
