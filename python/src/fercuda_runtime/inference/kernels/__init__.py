"""Fused Triton kernels for PyTorch's models, and patches that put them into those of Transformers.

    from fercuda_runtime.inference.kernels import patch, unpatch

    print(patch(model))             # what was replaced, what was left, and why
    model.generate(...)
    unpatch(model)

The kernels run on CUDA tensors of float32, float16 and bfloat16, on GPUs of compute capability
8.0 or more, in PyTorch's current stream. They round where PyTorch's operators do, and compute in
float32 in between. Anything else (tensors on the CPU, tensor subclasses, mixed types,
`torch.compile`, functional transforms) is computed by PyTorch's operators. `fused_linear`,
`fused_linear_add` and `fused_gate_up` are products of at most four rows, as decoding has, without
gradients. No function waits for the GPU, so a CUDA graph can capture each of them after a first
call, which compiles it.

Import needs PyTorch; a first call on the GPU needs Triton, which needs a C compiler.
"""

from .activation import fused_gelu_mul, fused_silu_mul
from .delta import fused_conv_update, fused_gated_delta_step
from .linear import fused_gate_up, fused_linear, fused_linear_add
from .norm import fused_rms_norm
from .patch import patch, patch_qwen35_with_triton, unpatch
from .report import PatchReport, PatchRow
from .rotary import fused_rotary_emb

__all__ = [
    "PatchReport",
    "PatchRow",
    "fused_conv_update",
    "fused_gated_delta_step",
    "fused_gate_up",
    "fused_gelu_mul",
    "fused_linear",
    "fused_linear_add",
    "fused_rms_norm",
    "fused_rotary_emb",
    "fused_silu_mul",
    "patch",
    "patch_qwen35_with_triton",
    "unpatch",
]
