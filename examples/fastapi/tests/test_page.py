"""docs/fastapi.md shows parts of these files as they are."""

import re
from pathlib import Path

SHOP = Path(__file__).parent.parent
FILES = {"python": ["app.py", "tests/conftest.py"], "sql": ["setup.sql"]}


def test_the_page_shows_the_shop():
    page = (SHOP.parent.parent / "docs/fastapi.md").read_text()
    blocks = re.findall(r"```(python|sql)\n(.*?)^```$", page, re.S | re.M)
    assert {language for language, _ in blocks} == set(FILES)
    for language, block in blocks:
        assert any(block in (SHOP / file).read_text() for file in FILES[language]), block
