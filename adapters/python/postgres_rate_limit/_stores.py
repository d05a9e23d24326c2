"""The shared part of the framework stores that use the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, TypeVar

from postgres_rate_limit._configs import Config
from postgres_rate_limit._facts import FACTS
from postgres_rate_limit._results import Decision, log

C = TypeVar("C")
OnUnchecked = Callable[[BaseException], object]


def stored_key(key: str) -> str:
    """A key that the extension accepts: a longer one, or one that is not text in the database, becomes its hash."""
    try:
        if len(key.encode()) <= FACTS["bytes"]["key"] and "\0" not in key and not key.startswith("sha256:"):
            return key
    except UnicodeEncodeError:
        pass
    # A key that looks like a hash is hashed, too, so that it can't collide with another key's.
    return "sha256:" + sha256(key.encode(errors="surrogatepass")).hexdigest()


def checked_name(name: Any) -> str:
    if not (isinstance(name, str) and 1 <= len(name.encode()) <= FACTS["bytes"]["name"]):
        raise ValueError(f"name is {name!r}; allowed: 1 to {FACTS['bytes']['name']} bytes")
    return name


def limiter_of(
    client: Callable[..., C],
    db: object,
    on_unchecked: OnUnchecked | None = None,
    limits: Mapping[str, Config] | None = None,
    **options: Any,
) -> C:
    """Makes a client of this class. Without limits, calls pass their configs. options: the client's own."""

    def decided(decision: Decision) -> None:
        if on_unchecked is not None and decision.ok and decision.error:
            try:
                on_unchecked(decision.error)
            except Exception:
                log.exception("on_unchecked failed")

    # Without on_unchecked the client logs a warning.
    on_decision = None if on_unchecked is None else decided
    return client(limits or {}, db=db, on_decision=on_decision, **options)
