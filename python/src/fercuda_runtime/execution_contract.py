"""What this package keeps to, by name and version: for programs that ask before they rely on it.

A version is raised when something that worked no longer does; what is new does not raise it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from . import _fercuda
from .errors import ContractError

__all__ = ["Entrypoint", "Interface", "require", "supported"]


class Entrypoint(str, Enum):
    """Ways into the runtime, and the names that stand for them."""

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
    """Something with a version."""

    name: str
    version: tuple[int, ...]


def supported() -> dict[str, Interface]:
    """All that this package keeps to, by name.

    "dlpack" and "cuda_array_interface" are those protocols; "process_pool" is the table by which libraries of one
    process share its pool; "ignition_plan" the format of saved plans; the others are `Entrypoint`s.
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
    """That interface, if its version is of the same first number and no older. Raises `ContractError`."""
    known = supported()
    found = known.get(name)
    if found is None:
        raise ContractError(f"nothing here is called {name!r}\ntry: one of {', '.join(sorted(known))}")
    if found.version[:1] != version[:1] or found.version < version:
        raise ContractError(f"{name} is of version {found.version} here, and {version} was asked for")
    return found
