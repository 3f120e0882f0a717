"""PyTorch's attention in f32 on the GPU, by its own choice of kernel.

usage: attention.py HEADS LENGTH DIM CAUSAL Q K V OUT
"""
import sys

import numpy as np
import torch

heads, length, dim, causal = map(int, sys.argv[1:5])
q, k, v = (
    torch.from_numpy(np.fromfile(path, dtype="<f4").reshape(1, heads, length, dim)).cuda() for path in sys.argv[5:8]
)
out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(causal))
out.cpu().numpy().astype("<f4").tofile(sys.argv[8])
