"""Triton sources of the fused kernels: they import Triton alone, and no PyTorch.

Every kernel addresses elements with 64-bit offsets, computes in f32, and rounds to the tensors'
type where PyTorch's operators do, one after another. `rotary`, `activation` and `norm` are compiled
without fused multiply-add (`enable_fp_fusion=False`), so that products are rounded as well;
`linear` is compiled with it, as its sums are in an order of their own anyway.
"""
