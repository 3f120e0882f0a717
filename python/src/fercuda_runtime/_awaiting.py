"""Awaiting jobs and tasks: a job's thread notifies the event loop once; a task has no callback, so
a thread waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

from ._fercuda import Job, Ticket


def notification(loop: asyncio.AbstractEventLoop) -> tuple[asyncio.Future[None], Callable[[], None]]:
    """A future of the loop, and what settles it from another thread. If the loop was closed
    meanwhile, nothing waits in it."""
    future: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    def notify() -> None:
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:
                if not loop.is_closed():
                    raise

    return future, notify


def outcome(job: Job) -> Generator[object, None, bytes | None]:
    """Implements `await job`: waits in the running loop; cancelling the asyncio task cancels the
    job if possible."""
    future, notify = notification(asyncio.get_running_loop())
    job.add_done_callback(notify)
    try:
        yield from future
    except asyncio.CancelledError:
        job.cancel()
        raise
    return job.wait()


def task(ticket: Ticket) -> Generator[object, None, int | float]:
    """Implements `await ticket`: waits in a thread of the loop; cancelling the asyncio task cancels
    the ticket's task."""
    loop = asyncio.get_running_loop()
    try:
        return (yield from loop.run_in_executor(None, ticket.wait))
    except asyncio.CancelledError:
        ticket.cancel()
        raise
