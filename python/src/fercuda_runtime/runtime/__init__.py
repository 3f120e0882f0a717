"""Devices, sessions, buffers and jobs, and their telemetry.

Shapes are tuples of lengths, strides count elements, sizes end in `_bytes`, times in `_s`.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._allocator import Allocator
from .._fercuda import (
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
from .telemetry import Holder, Interception, Telemetry, interception, telemetry

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
    "Interception",
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
    "interception",
    "reboot",
    "telemetry",
]


@dataclass(frozen=True, slots=True)
class Rebooted:
    """Result of a reboot. `others`: tenants that still hold memory of the device."""

    epoch: int
    sessions: int
    returned_bytes: int
    was_reset: bool
    others: tuple[Holder, ...]


def reboot(runtime: Runtime, *, reset_failed: bool = False) -> Rebooted:
    """Like `Runtime.reboot`, with a named result."""
    epoch, sessions, returned_bytes, was_reset, others = runtime.reboot(reset_failed=reset_failed)
    return Rebooted(epoch, sessions, returned_bytes, was_reset, tuple(Holder(*it) for it in others))
