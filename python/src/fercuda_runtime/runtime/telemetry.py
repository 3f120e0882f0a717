"""Memory of devices by tenant, and counters of intercepted calls. `runtime.telemetry` is the
function."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _fercuda
from .._fercuda import Runtime
from ..errors import ConfigError

__all__ = ["Holder", "Interception", "Telemetry", "interception", "telemetry"]


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
class Interception:
    """Counters of the driver calls that are intercepted in this process, on all devices together,
    since it began.

    `allocations`, `frees`: of the pools, by all libraries; `fallbacks`: allocations that a pool
    should have served and the driver did, 0 in a governed process; `live_bytes`, `peak_bytes`: live
    blocks of the pools; `governed_bytes`: memory directly from the driver, including host memory;
    `overhead_bytes`: the driver's own memory for contexts and code, when it was last read;
    `is_racing`: whether the counters changed while they were read.
    """

    allocations: int
    frees: int
    fallbacks: int
    live_bytes: int
    peak_bytes: int
    governed_bytes: int
    overhead_bytes: int
    is_racing: bool


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


def interception() -> Interception:
    """The counters of the hook, or of this package's own interception outside of `fercuda run`, as
    in `include/fercuda/intercept_telemetry.h`. Scans the ledger: for monitoring.

    Raises `ConfigError` if no memory is governed in this process, `ForkedError`.
    """
    figures = _fercuda.intercepted()
    if figures is None:
        raise ConfigError(
            "no memory is governed in this process\n"
            "try: to open a runtime first, or `fercuda run`; and FERCUDA_DISABLE is not to be 1"
        )
    return Interception(*figures)
