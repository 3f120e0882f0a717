"""A session that opens its device itself."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, Self

from .. import errors as _errors
from .. import runtime as _runtime
from .._allocator import Allocator
from .._fercuda import Runtime, Session

Select = Literal["auto", "gpu", "soft"]
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Selection of a device.

    `device`: its ordinal. `select`: "gpu" or "soft" require that driver; "auto" uses a GPU if there
    is one, else the software device; None uses the variable FERCUDA_DEVICE, or "auto" without it.
    """

    device: int = 0
    select: Select | None = None

    def open(self) -> Runtime:
        """Opens the device. Raises `NoDeviceError`, `ConfigError`, `DriverError`."""
        return Runtime(self.device, self.select)


class RuntimeSession(Session):
    """A session on a device: the owner of buffers, jobs and modules, and a tenant of the device's
    pool.

    `name` is the name of its tenant in the ledger and in `fercuda top`, by default "session1",
    "session2" ..., a new one for each session of this process; `limit_bytes` is the most
    device memory it may hold, as a number or as text such as "1GiB"; None for no limit. As a
    context manager it is closed at the end: its work is waited for, and its memory is freed.
    `allocator` is the source of buffers of the regime "callbacks": see `Session`.

    Raises `SessionNameError` if a session of that name is open, and the exceptions of
    `RuntimeConfig.open`.
    """

    runtime: Runtime

    def __new__(
        cls,
        name: str | None = None,
        *,
        limit_bytes: int | str | None = None,
        config: RuntimeConfig | None = None,
        runtime: Runtime | None = None,
        allocator: Allocator | None = None,
    ) -> Self:
        if runtime is None:
            runtime = (config or RuntimeConfig()).open()
        elif config is not None:
            raise _errors.ConfigError("both config and runtime are given\ntry: one of them")
        while name is None:
            try:
                new = f"session{next(_numbers)}"
                session = super().__new__(cls, runtime, new, limit_bytes, allocator=allocator)
                break
            except _errors.SessionNameError:
                # The program has given that name to a session itself.
                continue
        else:
            session = super().__new__(cls, runtime, name, limit_bytes, allocator=allocator)
        session.runtime = runtime
        return session

    def telemetry(self) -> _runtime.Telemetry:
        """Telemetry of its device: see `fercuda_runtime.runtime.telemetry`."""
        return _runtime.telemetry(self.runtime)
