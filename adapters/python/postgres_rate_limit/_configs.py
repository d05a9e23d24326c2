"""Configs of limits, in the form of the database: jsonb, with spans in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, Union

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
WEEK = timedelta(weeks=1)

Config = Mapping[str, Any]
"""A limit: the result of token_bucket or another builder, or its fields. In these a span is a timedelta, a text such
as "1 minute" or, as in the database, a number of milliseconds."""

Store = Literal["table", "memory"]
# Text is for calendar windows: "1 month". A number would be milliseconds to some and seconds to others.
Span = Union[timedelta, str]


def token_bucket(
    rate: float,
    period: Span,
    *,
    capacity: float | None = None,
    max_reserved: float | None = None,
    shards: int | None = None,
    store: Store | None = None,
    save: Span | None = None,
    keyed: bool | None = None,
    enforce: bool | None = None,
) -> Config:
    """rate tokens a period, which flow in steadily, up to capacity."""
    own = {"rate": rate, "period": _span(period), "capacity": capacity, "maxReserved": max_reserved, "shards": shards}
    return _config("token bucket", own, store, save, keyed, enforce)


def fixed_window(
    rate: float,
    period: Span,
    *,
    capacity: float | None = None,
    max_reserved: float | None = None,
    shards: int | None = None,
    start: datetime | str | None = None,
    timezone: str | None = None,
    overage: bool | None = None,
    store: Store | None = None,
    save: Span | None = None,
    keyed: bool | None = None,
    enforce: bool | None = None,
) -> Config:
    """rate tokens at the start of each window.

    start: a time with its offset, "first request", or with timezone a local date.
    """
    own: dict[str, Any] = {"rate": rate, "capacity": capacity, "maxReserved": max_reserved, "shards": shards}
    own |= {"period": _days(period) if timezone is not None else _span(period)}
    own |= {"start": _start(start), "timezone": timezone, "overage": overage}
    return _config("fixed window", own, store, save, keyed, enforce)


def sliding_window(
    rate: float,
    period: Span,
    *,
    store: Store | None = None,
    save: Span | None = None,
    keyed: bool | None = None,
    enforce: bool | None = None,
) -> Config:
    """About rate tokens in any period, from two counters."""
    return _config("sliding window", {"rate": rate, "period": _span(period)}, store, save, keyed, enforce)


def sliding_log(rate: int, period: Span, *, keyed: bool | None = None, enforce: bool | None = None) -> Config:
    """At most rate tokens in any period, exactly."""
    return _config("sliding log", {"rate": rate, "period": _span(period)}, None, None, keyed, enforce)


def concurrency(
    slots: int,
    ttl: Span,
    *,
    store: Store | None = None,
    save: Span | None = None,
    keyed: bool | None = None,
    enforce: bool | None = None,
) -> Config:
    """At most slots leases at a time; each ends after ttl, unless it is extended."""
    return _config("concurrency", {"slots": slots, "ttl": _span(ttl)}, store, save, keyed, enforce)


def unlimited() -> Config:
    """No limit."""
    return {"kind": "unlimited"}


def json_of(config: Config) -> str:
    """The text of a config, with spans in milliseconds."""
    # Not ASCII only: a backslash in a literal of a migration means something else if standard strings are off.
    fields = dict(config)
    if fields.get("timezone") is not None and "period" in fields:
        fields["period"] = _days(fields["period"])
    return json.dumps(fields, default=_milliseconds, ensure_ascii=False, allow_nan=False)


def _config(kind: str, own: dict[str, Any], store: Any, save: Any, keyed: Any, enforce: Any) -> Config:
    fields = {"kind": kind, **own, "store": store, "save": None if save is None else _span(save)}
    fields |= {"keyed": keyed, "enforce": enforce}
    return {field: value for field, value in fields.items() if value is not None}


def _span(span: Span) -> float | str:
    if isinstance(span, timedelta):
        return _milliseconds(span)
    if isinstance(span, str):
        return span
    raise TypeError(
        f"the span is {span!r}; allowed: a timedelta such as MINUTE or 5 * MINUTE, or a text such as '1 minute'"
    )


def _days(period: Any) -> Any:
    """The period of a calendar window, as text."""
    if isinstance(period, timedelta) and period % DAY == timedelta(0):
        return f"{period // DAY} days"
    return period if isinstance(period, str) else _span(period)


def _milliseconds(span: object) -> float:
    if not isinstance(span, timedelta):
        raise TypeError(f"{span!r} can't be in a config; allowed: what JSON has, and a timedelta")
    microseconds = span // timedelta(microseconds=1)
    return microseconds // 1000 if microseconds % 1000 == 0 else microseconds / 1000


def _start(start: datetime | str | None) -> str | None:
    if not isinstance(start, datetime):
        return start
    if start.tzinfo is None:
        raise ValueError(f"start is {start}; allowed: a time with an offset, such as timezone.utc")
    return start.isoformat()
