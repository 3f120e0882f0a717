"""Versioned guarantees of this package, by name: for programs that check before they rely on one.

A version is raised when something that worked no longer does; additions do not raise it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from . import _fercuda
from .errors import ContractError

__all__ = ["Entrypoint", "Interface", "require", "supported"]


class Entrypoint(str, Enum):
    """Entry points of the runtime, by name."""

    TENSOR = "tensor"
    """Buffers of a session: `Session.alloc`, views, copies."""
    JIT_LAUNCH = "jit_launch"
    """Kernels from PTX: `Session.load`, `Session.launch`."""
    FRAMEWORK_ALLOCATOR = "framework_allocator"
    """Frameworks as tenants: `guest_hooks.activate`."""
    TRITON_KERNEL = "triton_kernel"
    """Kernels that Triton has compiled: `guest_hooks.open_triton`, `load_triton`."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A name with a version."""

    name: str
    version: tuple[int, ...]


def supported() -> dict[str, Interface]:
    """All guarantees, by name.

    "dlpack" and "cuda_array_interface" are those protocols; "process_pool" is the interface through
    which libraries in one process share its pool; "ignition_plan" the format of saved plans; the
    others are `Entrypoint`s.
    """
    versions = {
        **{str(entry.value): (1,) for entry in Entrypoint},
        "dlpack": _fercuda.DLPACK_VERSION,
        "cuda_array_interface": (3,),
        "process_pool": (_fercuda.interface_version(),),
        "ignition_plan": (1,),
    }
    return {name: Interface(name, version) for name, version in versions.items()}


def require(name: str, version: tuple[int, ...]) -> Interface:
    """The interface of this name, if its version is compatible: same major number, no older. Raises
    `ContractError`."""
    known = supported()
    found = known.get(name)
    if found is None:
        raise ContractError(f"there is no interface {name!r}\ntry: one of {', '.join(sorted(known))}")
    if found.version[:1] != version[:1] or found.version < version:
        raise ContractError(f"{name} has version {found.version}, but {version} is required")
    return found
