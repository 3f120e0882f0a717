"""Jobs and tasks in an event loop: a job's thread tells the loop once; for a task, which nobody tells of, a thread waits."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from ._fercuda import Job, Ticket


def outcome(job: Job) -> Generator[object, None, bytes | None]:
    """What `await job` does: waits in the running loop; a cancelled task cancels the job if it can be."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    def told() -> None:
        # In the job's thread. A loop that was closed meanwhile has nobody waiting.
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:
                if not loop.is_closed():
                    raise

    job.add_done_callback(told)
    try:
        yield from future
    except asyncio.CancelledError:
        job.cancel()
        raise
    return job.wait()


def task(ticket: Ticket) -> Generator[object, None, int | float]:
    """What `await ticket` does: a thread of the loop's waits; a cancelled task of the loop cancels the ticket's."""
    loop = asyncio.get_running_loop()
    try:
        return (yield from loop.run_in_executor(None, ticket.wait))
    except asyncio.CancelledError:
        ticket.cancel()
        raise
