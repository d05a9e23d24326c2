"""A denial as an HTTP response, for any framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, inf
from typing import Any, Literal, TypedDict, Union

from postgres_rate_limit._results import RateLimitExceeded, retry_header

# The headers with an item for each limit.
_LISTS = ("RateLimit", "RateLimit-Policy")
_SPANS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


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
    found = _all_of(denials)
    headers: dict[str, str] = {}
    for name in _LISTS:
        if items := dict.fromkeys(own[name] for _, own in found if name in own):
            headers[name] = ", ".join(items)
    wait, own = _last(found)
    headers.update((name, text) for name, text in own.items() if name not in _LISTS and name.lower() != "retry-after")
    return {"status_code": 429, "headers": {**headers, **retry_header(wait)}}


def try_again(*denials: Any) -> str:
    """Returns the longest wait of one denial or several in words, for the text of the response: "try again in 5
    minutes", or "this can never pass". Rounded up, to whole seconds, or from 2 minutes, hours and days on to these.

    denials: as of too_many_requests.
    """
    wait, _ = _last(_all_of(denials))
    if wait is None:
        return "this can never pass"
    seconds = max(1, ceil(wait))
    span, name = next((span, name) for span, name in _SPANS if seconds % span == 0 or seconds >= 2 * span)
    number = ceil(seconds / span)
    return f"try again in {number} {name}{'' if number == 1 else 's'}"


Denial = tuple[Union[float, None], Mapping[str, str]]
"""Its wait and its headers."""


def _all_of(denials: Iterable[Any]) -> list[Denial]:
    found = [each for denial in denials for each in _found(denial)]
    if not found:
        raise ValueError("there is no denial; allowed: denials")
    return found


def _last(denials: Iterable[Denial]) -> Denial:
    """The one with the longest wait."""
    return max(denials, key=lambda each: inf if each[0] is None else each[0])


def _found(denial: Any) -> list[Denial]:
    if not isinstance(denial, BaseException):
        if denial.ok:
            raise ValueError(f"a call that was allowed is no denial: {denial!r}; allowed: denials")
        limit = getattr(denial, "denied_by", denial)
        return [(limit.retry_after, getattr(denial, "headers", {}))]
    several = getattr(denial, "exceptions", None)
    if isinstance(several, tuple):  # an ExceptionGroup, which Python has from 3.11
        try:
            return [each for one in several for each in _found(one)]
        except BaseException:
            raise denial from None
    error = RateLimitExceeded.from_error(denial)
    if error is None:
        raise denial
    return [(error.retry_after, error.headers)]
