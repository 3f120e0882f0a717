"""Report of what this machine and this Python have, and how to get what is missing. Changes
nothing, and never raises for something missing.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from dataclasses import dataclass

from . import _fercuda

__all__ = ["Device", "Driver", "Library", "Report", "doctor"]

_LIBRARIES = ("numpy", "cuda-core", "cuda-bindings", "torch", "jax", "cupy", "triton")
# Alternative distribution names of a library.
_OTHER_NAMES = {"cupy": ("cupy-cuda13x", "cupy-cuda12x")}
_MODULES = {"cuda-core": "cuda.core", "cuda-bindings": "cuda.bindings"}


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a driver. `compute_capability`: (major, minor)."""

    ordinal: int
    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int
    multiprocessors: int


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver: "gpu", NVIDIA's, or "soft", the software device. `why`: the error, if it does not
    work."""

    name: str
    version: str | None
    place: str | None
    why: str | None
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Library:
    """A library; `version` is None if it is not installed. `is_imported`: imported in this
    process."""

    name: str
    version: str | None
    is_imported: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The whole report. `nvrtc`: its version; `nvrtc_why`: why there is none. `variables`:
    FERCUDA_* variables that are set."""

    version: str
    python: str
    drivers: tuple[Driver, ...]
    nvrtc: str | None
    nvrtc_why: str | None
    libraries: tuple[Library, ...]
    is_hooked: bool
    variables: dict[str, str]

    def __str__(self) -> str:
        lines = [f"fercuda_runtime {self.version}, Python {self.python}"]
        for driver in self.drivers:
            place = f"{driver.version} {driver.place}" if driver.version else "no"
            lines.append(f"  {driver.name:<14} {place}")
            lines += [f"    {line}" for line in (driver.why or "").splitlines()]
            for device in driver.devices:
                lines.append(f"    device {device.ordinal}: {device.name}, {device.memory_bytes / 2**30:.1f} GiB")
        lines.append(f"  {'NVRTC':<14} {self.nvrtc or 'no'}")
        for library in self.libraries:
            imported = ", imported" if library.is_imported else ""
            lines.append(f"  {library.name:<14} {library.version or 'no'}{imported}")
        lines.append(f"  {'governed':<14} {'by the hook' if self.is_hooked else 'no hook'}")
        lines += [f"  {name}={value}" for name, value in self.variables.items()]
        return "\n".join(lines)


def _version(name: str) -> str | None:
    for name in (name, *_OTHER_NAMES.get(name, ())):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def doctor() -> Report:
    """Examines drivers, compilers and libraries. Opens both drivers; imports nothing.

    Raises `ForkedError` only.
    """
    drivers = tuple(
        Driver(name, version, place, why, tuple(Device(*it) for it in devices))
        for name, version, place, why, devices in _fercuda.drivers()
    )
    nvrtc, _, nvrtc_why = _fercuda.nvrtc()
    libraries = (Library(it, _version(it), _MODULES.get(it, it) in sys.modules) for it in _LIBRARIES)
    return Report(
        version=_fercuda.__version__,
        python=".".join(map(str, sys.version_info[:3])),
        drivers=drivers,
        nvrtc=nvrtc,
        nvrtc_why=nvrtc_why,
        libraries=tuple(libraries),
        is_hooked=_fercuda.is_hooked(),
        variables={name: value for name, value in sorted(os.environ.items()) if name.startswith("FERCUDA_")},
    )
