"""Makes the synchronous half of the package for Python from the asynchronous one: of each adapters/python/…/_NAME_async.py
a _NAME_sync.py, token by token. With --check, as make lint runs it, compares them instead; ends with 1 if one differs.

Names lose their Async or _async, and awaits go; in code FORMS are replaced, and in docstrings and comments PHRASES.
Lines between the comments `# begin async` and `# end async` are left out.
"""

import re
import sys
import tokenize
from io import StringIO
from itertools import accumulate
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "adapters/python/postgres_rate_limit"
WIDTH = 120
NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "AsyncCallbackHandler": "BaseCallbackHandler",
    "is_async": "is_async",
}
# In code, after the tokens.
FORMS = [
    (r"\blimits\.aio\.storage\b", "limits.storage"),
    (r'"async\+', '"'),
    (r'"sqlalchemy\.ext\.asyncio", "Async(Connection|Engine)"', r'"sqlalchemy", "\1"'),
    (r'"sqlalchemy\.ext\.asyncio", "(?:Async|async_)(\w+)"', r'"sqlalchemy.orm", "\1"'),
    (r"\.sync_connection\.", "."),
    (r'(?s)"an AsyncConnection or .*?returns rows"', """\
"a Connection or ConnectionPool of psycopg; a Connection, Engine, Session or scoped_session of SQLAlchemy; "
    "a connection of Django; a function (sql, values) that returns rows\""""),
    (r'"Async(?=Conn)', '"'),
    (r"\buse RateLimiter;", "use AsyncRateLimiter;"),
    (r"^import asyncio\n", ""),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\basyncio\.(Event|Lock)\b", r"threading.\1"),
    (r"\basyncio\.wait\(\[(self\.\w+)\]\)", r"\1.join()"),
    (r"\basyncio\.Task\[None\]", "threading.Thread"),
    (r"\basyncio\.to_thread\((\w+), ", r"\1("),
    (r"\bid\(asyncio\.get_running_loop\(\)\), ", ""),
    (r"^from collections.abc import Callable, Sequence$", "from collections.abc import Sequence"),
    (r"\bis_async = True", "is_async = False"),
    (r"\bPending, ", ""),
    (r"\bPending\[(\w+)\]", r"\1"),
    (r"\bPending\((\w+)\)", r"\1()"),
    (r"\bGenerator\[Any, None\]", "Generator[Any, None, None]"),
]
# In docstrings and comments, whole ones: a line of the source ends where one that is replaced does.
PHRASES = [
    (r"\s+Its methods are awaited; acquire, hold\s+and\s+hold_all are awaited or entered by `async with`\.", ""),
    (r"\s+Not awaited\.", ""),
    (r"\n +batch: (?:.|\n)*?(?=\n +\w+:|\n +\"\"\")", ""),
    (r", or await\s+it, and\s+check", ", or check"),
    (r"\basync with\b", "with"),
    (r"\bTasks of one event loop may share\b", "Threads may share"),
    (r"\bTasks may share\b", "Threads may share"),
    (
        r"asynchronous calls of the model run it, and no others\.",
        "asynchronous calls of the model run it in threads, which a waiting budget would block.",
    ),
    (r"\ban(\s+)Async(?=[A-Z])", r"a\1"),
    (r"\bAsync(?=[A-Z])", ""),
]
ASYNC_ONLY = re.compile(r"^ *# begin async\n(.*\n)*?^ *# end async\n", re.M)
ONE_LINE_IN_BRACKETS = re.compile(r"^(.*[(\[{])\n +(.*[^,\n])\n *([)\]}].*)$", re.M)


def named(name, modules):
    if name in modules:
        return name.removesuffix("_async") + "_sync"
    return NAMES.get(name) or re.sub(r"^(_?)Async(?=[A-Z])", r"\1", name).removesuffix("_async")


def made(source, modules):
    """The text of the synchronous module."""
    begins = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    tokens = [*tokenize.generate_tokens(StringIO(source).readline)]
    parts, end, strings = [], 0, 0
    for token, following in zip(tokens, tokens[1:]):
        of_token, of_following = (begins[line - 1] + column for line, column in (token.start, following.start))
        stop, text = of_token + len(token.string), token.string
        # From Python 3.12 on an f-string is several tokens; what is in it stays.
        kind = tokenize.tok_name[token.type]
        strings += (kind == "FSTRING_START") - (kind == "FSTRING_END")
        if strings or kind not in ("NAME", "COMMENT", "STRING"):
            continue
        if text in ("async", "await"):
            text, stop = "", of_following
        elif kind == "NAME":
            text = named(text, modules)
        elif kind == "COMMENT" or text.startswith('"""'):
            for phrase, instead in PHRASES:
                text = re.sub(phrase, instead, text)
        parts += [source[end:of_token], text]
        end = stop
    text = "".join(parts) + source[end:]
    for form, instead in FORMS:
        text = re.sub(form, instead, text, flags=re.M)
    return joined(text)


def joined(text):
    """What fits on one line now is on one, as a formatter has it."""
    while True:
        for found in ONE_LINE_IN_BRACKETS.finditer(text):
            line = "".join(found.groups())
            if len(line) <= WIDTH and not re.search(r'#|"""', line):
                text = text[: found.start()] + line + text[found.end() :]
                break
        else:
            return text


def main(check):
    sources = sorted(PACKAGE.glob("*_async.py"))
    modules, differ = {path.stem for path in sources}, []
    for path in sources:
        target = path.with_name(path.name.replace("_async.py", "_sync.py"))
        text = f"# Made from {path.name} by scripts/async_to_sync.py: change that one.\n"
        text += made(ASYNC_ONLY.sub("", path.read_text()), modules)
        if check and not (target.exists() and target.read_text() == text):
            differ.append(target.name)
        elif not check:
            target.write_text(text)
    known = {path.stem.removesuffix("_async") + "_sync.py" for path in sources}
    differ += sorted(path.name for path in PACKAGE.glob("*_sync.py") if path.name not in known)
    for name in differ:
        print(f"{name} is not what scripts/async_to_sync.py makes")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main(sys.argv[1:] == ["--check"])
