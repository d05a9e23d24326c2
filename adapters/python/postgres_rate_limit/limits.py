"""Counts the limits of the package limits in PostgreSQL, by the extension ratelimit.

Importing it registers the schemes postgresql+ratelimit and async+postgresql+ratelimit.
"""

from __future__ import annotations

from postgres_rate_limit._limits_async import AsyncRateLimitStorage
from postgres_rate_limit._limits_sync import RateLimitStorage

__all__ = ["AsyncRateLimitStorage", "RateLimitStorage"]
