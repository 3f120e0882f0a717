"""Devices, sessions, buffers and jobs, and their telemetry.

Shapes are tuples of lengths, strides count elements, sizes end in `_bytes`, times in `_s`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._allocator import Allocator
from ._fercuda import (
    ArgumentBlock,
    Buffer,
    Capture,
    Dispatcher,
    DispatchStatistics,
    Function,
    GraphKey,
    GraphRecord,
    Graphs,
    GraphStatistics,
    GraphTimes,
    Job,
    Module,
    Requests,
    Runtime,
    Scalar,
    Session,
    Ticket,
    VramFile,
)

__all__ = [
    "Allocator",
    "ArgumentBlock",
    "Buffer",
    "Capture",
    "DispatchStatistics",
    "Dispatcher",
    "Function",
    "GraphKey",
    "GraphRecord",
    "GraphStatistics",
    "GraphTimes",
    "Graphs",
    "Holder",
    "Job",
    "Module",
    "Rebooted",
    "Requests",
    "Runtime",
    "Scalar",
    "Session",
    "Telemetry",
    "Ticket",
    "VramFile",
    "reboot",
    "telemetry",
]


@dataclass(frozen=True, slots=True)
class Holder:
    """A tenant's memory on a device in this process.

    `pooled_bytes`: live blocks of the pool; `governed_bytes`: memory directly from the driver,
    including host memory.
    """

    tenant: str
    pooled_bytes: int
    governed_bytes: int


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A snapshot of counters; while other threads work, they may be of slightly different
    moments."""

    device: int
    device_name: str
    is_software: bool
    is_governed: bool
    epoch: int
    free_bytes: int
    total_bytes: int
    holders: tuple[Holder, ...]
    sessions: tuple[str, ...]

    def held_bytes(self, tenant: str) -> int:
        """All memory of `tenant`, such as a session's name."""
        held = (it.pooled_bytes + it.governed_bytes for it in self.holders if it.tenant == tenant)
        return sum(held)


@dataclass(frozen=True, slots=True)
class Rebooted:
    """Result of a reboot. `others`: tenants that still hold memory of the device."""

    epoch: int
    sessions: int
    returned_bytes: int
    was_reset: bool
    others: tuple[Holder, ...]


def telemetry(runtime: Runtime) -> Telemetry:
    """Memory of `runtime`'s device by tenant in this process, from the ledger, and free memory
    according to the driver.

    Raises `ForkedError`, `DriverError`.
    """
    free_bytes, total_bytes = runtime.memory()
    return Telemetry(
        device=runtime.device,
        device_name=runtime.device_name,
        is_software=runtime.is_software,
        is_governed=runtime.is_governed,
        epoch=runtime.epoch,
        free_bytes=free_bytes,
        total_bytes=total_bytes,
        holders=tuple(Holder(*it) for it in runtime.holders()),
        sessions=tuple(runtime.sessions()),
    )


def reboot(runtime: Runtime, *, reset_failed: bool = False) -> Rebooted:
    """Like `Runtime.reboot`, with a named result."""
    epoch, sessions, returned_bytes, was_reset, others = runtime.reboot(reset_failed=reset_failed)
    return Rebooted(epoch, sessions, returned_bytes, was_reset, tuple(Holder(*it) for it in others))
