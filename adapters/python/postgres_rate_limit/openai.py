"""Budgets around the client of OpenAI, and of the many services that speak its protocol.

    responses = budgeted(client.responses, budget)
    responses.create(model="gpt-5", input="…", max_output_tokens=500)
    completions = budgeted(client.chat.completions, budget)
    completions.create(model="gpt-5", messages=[…], max_completion_tokens=500)

A denial raises RateLimitExceeded, and nothing is sent.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from openai.resources.chat.completions import AsyncCompletions, Completions
from openai.resources.responses import AsyncResponses, Responses

from postgres_rate_limit._openai_async import AsyncBudgeted
from postgres_rate_limit._openai_sync import Budgeted
from postgres_rate_limit.budget import Budget

__all__ = ["budgeted"]

C = TypeVar("C", Completions, AsyncCompletions, Responses, AsyncResponses)


def budgeted(calls: C, budget: Budget[Any]) -> C:
    """The same client with only create, which also takes hold_id: repeating a call with the id of one that isn't
    settled yet holds nothing twice. Asynchronous with an AsyncRateLimiter, and only then."""
    is_async = isinstance(calls, (AsyncCompletions, AsyncResponses))
    made: Any = AsyncBudgeted(calls, budget) if is_async else Budgeted(calls, budget)
    return cast(C, made)
