"""A budget of a model's tokens, which are held and then settled; docs/python.md shows it. test_holds.py runs it."""

from __future__ import annotations

from collections.abc import Callable

from postgres_rate_limit import MINUTE, RateLimiter, token_bucket

LIMITS = {"llmTokens": token_bucket(40_000, MINUTE)}


def answer(limiter: RateLimiter, model: Callable[[str], tuple[str, int]], user: str, question: str) -> str:
    with limiter.hold("llmTokens", user, 12_000) as hold:  # is committed before the model is called
        text, used = model(question)  # an exception gives back what was held
        hold.settle(used)
    return text
