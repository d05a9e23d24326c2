"""A denial as an HTTP response, for any framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, Literal, TypedDict

from postgres_rate_limit._results import RateLimitExceeded, retry_header

# The headers with an item for each limit.
_LISTS = ("RateLimit", "RateLimit-Policy")


class TooManyRequests(TypedDict):
    status_code: Literal[429]
    headers: dict[str, str]


def too_many_requests(*denials: Any) -> TooManyRequests:
    """Returns the response of a route to one denial or several: status 429, and as headers Retry-After, the longest
    wait, and those that the calls asked for. Without Retry-After if one can never pass.

        raise HTTPException(**too_many_requests(result))

    denials: answers of calls; errors that are denials, of the client, of a driver or, for example of a TaskGroup,
        several. Any other error is raised.
    """
    found = [each for denial in denials for each in _found(denial)]
    if not found:
        raise ValueError("there is no denial; allowed: denials")
    headers: dict[str, str] = {}
    for name in _LISTS:
        if items := dict.fromkeys(own[name] for _, own in found if name in own):
            headers[name] = ", ".join(items)
    wait, own = max(found, key=lambda each: inf if each[0] is None else each[0])
    headers.update((name, text) for name, text in own.items() if name not in _LISTS and name.lower() != "retry-after")
    return {"status_code": 429, "headers": {**headers, **retry_header(wait)}}


def _found(denial: Any) -> Iterator[tuple[float | None, Mapping[str, str]]]:
    """The wait and the headers of each denial."""
    if isinstance(denial, BaseException):
        several = getattr(denial, "exceptions", None)
        if isinstance(several, tuple):  # an ExceptionGroup, which Python has from 3.11
            try:
                found = [each for one in several for each in _found(one)]
            except BaseException:
                raise denial from None
            yield from found
            return
        error = RateLimitExceeded.from_error(denial)
        if error is None:
            raise denial
        yield error.retry_after, error.headers
        return
    if denial.ok:
        raise ValueError(f"a call that was allowed is no denial: {denial!r}; allowed: denials")
    limit = getattr(denial, "denied_by", denial)
    yield limit.retry_after, getattr(denial, "headers", {})
