"""The choice between a fused kernel and PyTorch's operators, and memory layouts of rows.

The choice depends on types, devices and layouts alone, never on values: nothing waits for the GPU.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
MAX_COLUMNS = 32768
"""The longest row that a program keeps in registers."""
MAX_PROGRAMS = 2**31 - 1
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@functools.cache
def is_supported(device: torch.device) -> bool:
    """Whether the kernels run on this device: NVIDIA's, of compute capability 8.0 or more."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return bool(torch.cuda.get_device_capability(device) >= (8, 0))


def is_traced() -> bool:
    """Whether operators are recorded, transformed or observed instead of simply run."""
    return bool(
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0
    )


def can_fuse(*tensors: torch.Tensor) -> bool:
    """Whether a kernel can run on these tensors, all of the first one's device."""
    # First: a compiler that traces this sees a constant, and nothing below it.
    if torch.compiler.is_compiling():
        return False
    device = tensors[0].device
    if not is_supported(device) or is_traced():
        return False
    for it in tensors:
        if type(it) not in _PLAIN or it.device != device or it.dtype not in FLOATS or it.numel() == 0:
            return False
    return True


def needs_grad(*tensors: torch.Tensor | None) -> bool:
    """Whether a backward pass may need the operation on these tensors."""
    return torch.is_grad_enabled() and any(it is not None and it.requires_grad for it in tensors)


def on_device(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Makes the tensor's device current, which is the one that Triton launches on."""
    if tensor.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    device: contextlib.AbstractContextManager[Any] = torch.cuda.device(tensor.device)
    return device


@functools.cache
def early_options(device: torch.device) -> dict[str, bool]:
    """Options of kernels that may begin before the one before them has ended, where a GPU can."""
    from ..triton_kernels.early import HAS_EARLY

    is_early = HAS_EARLY and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"IS_EARLY": True, "launch_pdl": True} if is_early else {"IS_EARLY": False}


@functools.cache
def count_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def next_power(n: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, n - 1).bit_length()


def is_dense(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether `x` has no holes, its rows are contiguous, and `y`, made like it, has its layout."""
    return bool(x.stride() == y.stride() and x.stride(-1) == 1)


def like(x: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """`x`, copied into the layout of `pattern` if it has another."""
    if x.stride() == pattern.stride():
        return x
    return torch.empty_like(pattern).copy_(x)


def with_rows(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The rows of `x` at one distance, as a view or a copy, and that distance in elements."""
    flat = x.reshape(-1, x.shape[-1])
    if flat.stride(-1) != 1:
        flat = flat.contiguous()
    return flat, flat.stride(0)
