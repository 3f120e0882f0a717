"""Writes blocks.bin (random Q4_K blocks) and values.bin (what the `gguf` package makes of them).

Run beside this file, in an environment with `pip install gguf==0.19.0`. Blocks: 16 of 144 bytes;
values: 16 * 256 little-endian f32. The first block's factors are zero and subnormal halves.
"""

from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

here = Path(__file__).parent
blocks = np.random.default_rng().integers(0, 256, (16, 144), dtype=np.uint8)
factors = np.random.default_rng().standard_normal((16, 2)).astype(np.float16)
factors[0] = (0.0, 3e-7)
blocks[:, :4] = factors.view(np.uint8)
values = dequantize(blocks.reshape(1, -1), GGMLQuantizationType.Q4_K)
assert values.dtype == np.float32 and values.size == 16 * 256
(here / "blocks.bin").write_bytes(blocks.tobytes())
(here / "values.bin").write_bytes(values.astype("<f4").tobytes())
