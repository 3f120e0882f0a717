"""Writes vectors.txt: hashes of what llama.cpp's C code makes of blocks and elements.

Run by hand, with numpy, on x86-64 Linux:

    npm pack @node-llama-cpp/linux-x64@3.21.1 && tar xzf node-llama-cpp-linux-x64-3.21.1.tgz
    python3 make_vectors.py package/bins/linux-x64/libggml-base.so [SEED] > vectors.txt

The inputs follow from the seed by the rules below, which tests/blocks/main.rs has too, so the file
has hashes alone. Another seed is another test: the file names its own.
"""

import ctypes
import hashlib
import sys

import numpy as np

FORMATS = [
    # name, number in GGUF, elements, bytes, offsets of f16 scales
    ("Q1_0", 41, 128, 18, [0]),
    ("Q2_0", 42, 64, 18, [0]),
    ("Q4_0", 2, 32, 18, [0]),
    ("Q4_1", 3, 32, 20, [0, 2]),
    ("Q5_0", 6, 32, 22, [0]),
    ("Q5_1", 7, 32, 24, [0, 2]),
    ("Q8_0", 8, 32, 34, [0]),
    ("Q8_1", 9, 32, 36, [0, 2]),
    ("Q2_K", 10, 256, 84, [80, 82]),
    ("Q3_K", 11, 256, 110, [108]),
    ("Q4_K", 12, 256, 144, [0, 2]),
    ("Q5_K", 13, 256, 176, [0, 2]),
    ("Q6_K", 14, 256, 210, [208]),
    ("Q8_K", 15, 256, 292, []),
    ("IQ1_S", 19, 256, 50, [0]),
    ("IQ1_M", 29, 256, 56, []),
    ("IQ2_XXS", 16, 256, 66, [0]),
    ("IQ2_XS", 17, 256, 74, [0]),
    ("IQ2_S", 22, 256, 82, [0]),
    ("IQ3_XXS", 18, 256, 98, [0]),
    ("IQ3_S", 21, 256, 110, [0]),
    ("IQ4_NL", 20, 32, 18, [0]),
    ("IQ4_XS", 23, 256, 136, [0]),
    ("TQ1_0", 34, 256, 54, [52]),
    ("TQ2_0", 35, 256, 66, [64]),
    ("MXFP4", 39, 32, 17, []),
    ("NVFP4", 40, 64, 36, []),
]
DECODE_BLOCKS = 256
ENCODE_BLOCKS = 64
KINDS = 10


def words(seed, first, count):
    """SplitMix64, by counter."""
    with np.errstate(over="ignore"):
        at = np.arange(first, first + count, dtype=np.uint64) + np.uint64(1)
        z = np.uint64(seed) + at * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def stream(seed, *names):
    """The seed of one case."""
    text = f"{seed} " + " ".join(str(name) for name in names)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def blocks(seed, name, size, halves):
    """Random blocks; a scale that is not finite loses the highest bit of its exponent."""
    count = DECODE_BLOCKS * size
    data = words(stream(seed, "blocks", name), 0, count // 8 + 1).astype("<u8").view(np.uint8)
    data = data[:count].reshape(DECODE_BLOCKS, size).copy()
    for at in halves:
        high = data[:, at + 1]
        high[(high & 0x7C) == 0x7C] &= 0xBF
    if name == "IQ1_M":
        # Its scale's bits 8 to 11 and 12 to 15.
        infinite = ((data[:, 55] & 0x70) == 0x70) & ((data[:, 53] & 0xC0) == 0xC0)
        data[infinite, 55] &= 0xBF
    if name == "Q8_K":
        infinite = ((data[:, 3] & 0x7F) == 0x7F) & ((data[:, 2] & 0x80) == 0x80)
        data[infinite, 3] &= 0xBF
    return data


def elements(seed, name, kind, count):
    """Elements of one kind, exact in every step."""
    random = words(stream(seed, "elements", name, kind), 0, count)
    low = (random & np.uint64(0xFFFFFF)).astype(np.int64)
    high = (random >> np.uint64(32)).astype(np.int64)
    at = np.arange(count)
    sign = np.where((high & 1) == 1, np.uint32(0x80000000), np.uint32(0)).astype(np.uint32)
    unit = ((low - 0x800000).astype(np.float32)) * np.float32(2.0**-23)

    def of_bits(bits):
        return bits.astype(np.uint32).view(np.float32)

    if kind == 0:
        return unit
    if kind == 1:
        four = sum((random >> np.uint64(16 * part)) & np.uint64(0xFFFF) for part in range(4))
        return (four.astype(np.int64) - 131070).astype(np.float32) * np.float32(2.0**-20)
    if kind == 2:
        # Of very different magnitudes.
        return of_bits(sign | ((100 + high // 2 % 40) << 23).astype(np.uint32) | (low >> 1).astype(np.uint32))
    if kind == 3:
        return (low % 3 - 1).astype(np.float32) * np.float32(0.375)
    if kind == 4:
        # Halves: ties of many scales.
        return (low % 33 - 16).astype(np.float32) * np.float32(0.5)
    if kind == 5:
        # Subnormal numbers and a little above.
        return of_bits(sign | (low % 0x1800000).astype(np.uint32) >> np.uint32(1))
    if kind == 6:
        return unit + np.float32(3.0)
    if kind == 7:
        # One of 64 is not 0.
        return np.where(low % 64 == 0, unit * np.float32(8.0), np.float32(0.0)).astype(np.float32)
    if kind == 8:
        # Just below powers of two, groups of 16 alike.
        power = (60 + (at // 16 * 7) % 130).astype(np.uint32)
        return of_bits(sign | (power << np.uint32(23)) - (high // 2 % 4).astype(np.uint32))
    return np.where((at // 32) % 3 == 0, np.float32(0.0), -np.abs(unit)).astype(np.float32)


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def main():
    library = ctypes.CDLL(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    library.ggml_commit.restype = ctypes.c_char_p
    library.ggml_version.restype = ctypes.c_char_p
    version = f"{library.ggml_version().decode()}, commit {library.ggml_commit().decode()}"
    print(f"# ggml {version}, by make_vectors.py")
    print(f"seed {seed}")
    pointer = lambda array: array.ctypes.data_as(ctypes.c_void_p)
    for name, number, in_block, size, halves in FORMATS:
        symbol = name if name.endswith("_K") else name.lower()
        symbol = symbol.replace("Q", "q", 1)
        decode = getattr(library, f"dequantize_row_{symbol}", None)
        if decode is not None:
            data = blocks(seed, name, size, halves)
            out = np.zeros(DECODE_BLOCKS * in_block, dtype=np.float32)
            decode(pointer(data), pointer(out), ctypes.c_int64(out.size))
            print(f"decode {name} {digest(out.astype('<f4').tobytes())}")
        encode = getattr(library, f"quantize_row_{symbol}_ref", None)
        if encode is None or name.startswith("IQ"):
            continue
        for kind in range(KINDS):
            values = elements(seed, name, kind, ENCODE_BLOCKS * in_block)
            out = np.zeros(ENCODE_BLOCKS * size, dtype=np.uint8)
            encode(pointer(values), pointer(out), ctypes.c_int64(values.size))
            print(f"encode {name} {kind} {digest(out.tobytes())}")


main()
