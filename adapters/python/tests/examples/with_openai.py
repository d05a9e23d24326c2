"""The example of docs/llm-budgets.md for the client of OpenAI."""

from queue import SimpleQueue

from openai import OpenAI
from psycopg_pool import ConnectionPool

from postgres_rate_limit import MINUTE, RateLimiter, concurrency, fixed_window, token_bucket
from postgres_rate_limit.budget import Budget, Unreported, Unsettled, Usage
from postgres_rate_limit.openai import budgeted

pool = ConnectionPool(open=False)
limiter = RateLimiter(
    {
        "generations": concurrency(5, 2 * MINUTE),
        "requests": token_bucket(100, MINUTE),
        "llmTokens": token_bucket(40_000, MINUTE),
        "microUsd": fixed_window(50_000_000, "1 month", timezone="UTC"),
    },
    db=pool,
)


def price(usage: Usage) -> float:
    """In millionths of a dollar: yours, for the models that you use."""
    return usage.input_tokens * 3 + usage.output_tokens * 15


def unreported(call: Unreported) -> Usage | None:
    """The prompt and what has come, if a stream broke or its user ended it; otherwise all that was held (None)."""
    return call.streamed if call.streamed.output_tokens else None


def answer(client: OpenAI, tenant: str, user: str, question: str) -> str:
    budget = Budget(
        limiter,
        [
            {"name": "generations", "key": tenant},
            {"name": "requests", "key": user},
            {"name": "llmTokens", "key": user, "count": "tokens"},
            {"name": "microUsd", "key": tenant, "count": price},
        ],
        unreported=unreported,
        on_unsettled=unsettled.put,
    )
    responses = budgeted(client.responses, budget)
    # Raises RateLimitExceeded, which has the wait, and sends nothing.
    events = responses.create(model="gpt-5", input=question, max_output_tokens=500, stream=True)
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


unsettled: SimpleQueue[Unsettled] = SimpleQueue()


def settle_again() -> None:
    """Settles what the database could not: once a minute, say."""
    for _ in range(unsettled.qsize()):
        each = unsettled.get()
        try:
            limiter.settle_all(each.hold, each.used)
        except Exception:
            unsettled.put(each)
            raise
