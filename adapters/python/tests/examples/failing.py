"""The example of docs/failing.md for what fails open."""

import logging

from postgres_rate_limit import MINUTE, RateLimiter, token_bucket

LIMITS = {"search": token_bucket(100, MINUTE)}
log = logging.getLogger(__name__)


def search(limiter: RateLimiter, user: str) -> str:
    result = limiter.limit("search", user, on_error="open")
    if result.error:  # allowed, since the limiter could not be asked
        log.warning("unchecked: %s", result.error)
    return "found" if result.ok else "too many requests"
