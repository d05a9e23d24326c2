"""Jobs of procrastinate with a limit for each tenant, which docs/queues.md shows. test_queues.py runs it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from procrastinate import App, BaseRetryStrategy, JobContext, PsycopgConnector, RetryDecision, RetryStrategy
from procrastinate.jobs import Job
from psycopg_pool import AsyncConnectionPool

from postgres_rate_limit import MINUTE, AsyncRateLimiter, token_bucket

pool = AsyncConnectionPool(open=False)
app = App(connector=PsycopgConnector())
limiter = AsyncRateLimiter({"reports": token_bucket(10, MINUTE, max_reserved=100_000)})


class NoToken(Exception):
    """The job's token comes at retry_at."""

    def __init__(self, retry_at: datetime):
        self.retry_at = retry_at


class Retry(BaseRetryStrategy):
    """Puts off a job without a token, and others as you like."""

    failed = RetryStrategy(max_attempts=3, exponential_wait=2)

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        if isinstance(exception, NoToken):
            return RetryDecision(retry_at=exception.retry_at)
        return self.failed.get_retry_decision(exception=exception, job=job)


async def limited(call_next: Any, context: JobContext, worker: Any) -> Any:
    """A middleware that takes a token for a job, or puts it off until there is one."""
    job, id = context.job, f"job-{context.job.id}"
    async with pool.connection() as connection:  # one transaction
        hold = await limiter.hold("reports", str(job.task_kwargs["tenant"]), id=id, reserve=True, db=connection)
        waits = not hold.ok or hold.retry_at is not None
        if waits:  # no try: procrastinate is about to add one
            await connection.execute("UPDATE procrastinate_jobs SET attempts = attempts - 1 WHERE id = %s", [job.id])
    if waits:
        raise NoToken(hold.retry_at or datetime.now(timezone.utc) + timedelta(hours=1))
    result = await call_next()
    await limiter.settle(id, db=pool)
    return result


@app.task(retry=Retry(), task_middleware=[limited])
async def report(tenant: str, body: str) -> None:
    """Is your work."""


async def cancel(job_id: int) -> bool:
    """Cancels a job that waits, and gives its token back; false if it runs, or has ended."""
    async with pool.connection() as connection:  # one transaction
        cancelled = await app.job_manager.cancel_job_by_id_async(job_id, connection=connection)
        if cancelled:
            await limiter.settle(f"job-{job_id}", 0, db=connection)
    return cancelled


async def work() -> None:
    async with pool, app.open_async():
        await app.run_worker_async()
