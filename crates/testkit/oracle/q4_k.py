"""Random Q4_K blocks and what the `gguf` package says they hold.

usage: q4_k.py SEED BLOCKS BLOCKS_FILE VALUES_FILE
"""
import sys

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

seed, blocks = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(seed)
data = rng.integers(0, 256, (blocks, 144), dtype=np.uint8)
# The two scales are finite f16 of any sign, subnormals among them: weights are never infinite.
for at in (0, 2):
    scale = rng.integers(0, 1 << 16, blocks, dtype=np.uint16)
    scale = np.where(scale & 0x7C00 == 0x7C00, scale ^ 0x0400, scale)
    data[:, at : at + 2] = scale.astype("<u2").reshape(-1, 1).view(np.uint8)
data.tofile(sys.argv[3])
dequantize(data, GGMLQuantizationType.Q4_K).astype("<f4").tofile(sys.argv[4])
