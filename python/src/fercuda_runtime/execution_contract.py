"""Versioned guarantees of this package, by name: for programs that check before they rely on one.

The names of entry points and clients, and `ABI_VERSION`, are those of the C interface
(`include/fercuda/execution_contract.h`). A version is raised when something that worked no longer
does; additions do not raise it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from . import _fercuda
from .errors import ContractError

__all__ = ["ABI_VERSION", "Entrypoint", "Frontend", "Interface", "entrypoint", "is_served", "require", "supported"]

ABI_VERSION = (1, 4)
"""Version of the C interface (FER_ABI_MAJOR, FER_ABI_MINOR) with these names."""


class Entrypoint(str, Enum):
    """Entry points of the runtime, by name."""

    TENSOR = "tensor"
    """Buffers of a session: `Session.alloc`, views, copies."""
    JIT_INTENT = "jit_intent"
    """Expressions that are fused, and compiled on first use: `Session.evaluate`."""
    JIT_LAUNCH = "jit_launch"
    """Kernels from PTX: `Session.load`, `Session.launch`."""
    RESIDENT_DAEMON = "resident_daemon"
    """Tasks for a resident kernel: `Session.dispatcher`."""
    FRAMEWORK_ALLOCATOR = "framework_allocator"
    """Frameworks as tenants: `guest_hooks.activate`."""
    TRITON_KERNEL = "triton_kernel"
    """Kernels that Triton has compiled: `guest_hooks.open_triton`, `load_triton`."""


class Frontend(str, Enum):
    """Clients of the entry points, by name."""

    C = "c"
    """C programs, by the headers."""
    CPP = "cpp"
    """C++ programs, by the headers."""
    PYTHON = "python"
    """Python programs, by this package."""
    RUST = "rust"
    """Rust programs, by the crates."""
    RUST_FERRITE_TORCH = "rust_ferrite_torch"
    """PyTorch; its driver allocations are intercepted."""


def entrypoint(frontend: Frontend | str) -> Entrypoint:
    """The primary entry point of a client. Raises `ContractError` for an unknown name."""
    try:
        frontend = Frontend(frontend)
    except ValueError:
        names = ", ".join(it.value for it in Frontend)
        raise ContractError(f"there is no frontend {frontend!r}\ntry: one of {names}") from None
    if frontend is Frontend.RUST_FERRITE_TORCH:
        return Entrypoint.FRAMEWORK_ALLOCATOR
    return Entrypoint.TENSOR


def is_served(entrypoint: Entrypoint | str) -> bool:
    """Whether an entry point works in this process, now: "framework_allocator" does under the hook,
    the others always. Raises `ContractError` for an unknown name."""
    try:
        found = Entrypoint(entrypoint)
    except ValueError:
        names = ", ".join(it.value for it in Entrypoint)
        raise ContractError(f"there is no entry point {entrypoint!r}\ntry: one of {names}") from None
    return found is not Entrypoint.FRAMEWORK_ALLOCATOR or _fercuda.is_hooked()


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
