"""The example of docs/llm-budgets.md for models of LangChain."""

from collections.abc import Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel
from psycopg_pool import ConnectionPool

from postgres_rate_limit import MINUTE, RateLimiter, fixed_window, token_bucket
from postgres_rate_limit.budget import Budget, Limit
from postgres_rate_limit.langchain import BudgetHandler

pool = ConnectionPool(open=False)
DAILY = fixed_window(1_000_000, "1 day", timezone="UTC")
limiter = RateLimiter({"requests": token_bucket(100, MINUTE), "llmTokens": DAILY}, db=pool)


def limits(request: Mapping[str, Any]) -> list[Limit]:
    tenant, user = request["metadata"]["tenant"], request["metadata"]["user"]
    return [{"name": "requests", "key": tenant}, {"name": "llmTokens", "key": user, "count": "tokens"}]


handler = BudgetHandler(Budget(limiter, limits, wait=60))


def answer(model: BaseChatModel, tenant: str, user: str, question: str) -> str:
    config: Any = {"callbacks": [handler], "metadata": {"tenant": tenant, "user": user}}
    return model.invoke(question, config=config).text  # denied for longer: RateLimitExceeded, which has the wait
