"""GGUF files of tensors and metadata, as far as tiny models need them."""

import struct

import numpy as np

ALIGN = 32
# Numbers of types in files.
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
TENSOR_F32 = 0


def _text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value):
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return U32, struct.pack("<I", value)
    if isinstance(value, float):
        return F32, struct.pack("<f", value)
    if isinstance(value, str):
        return STRING, _text(value)
    parts = [_value(it) for it in value]
    return ARRAY, struct.pack("<IQ", parts[0][0], len(parts)) + b"".join(data for _, data in parts)


def write(path, metadata, tensors):
    """Writes a file of f32 tensors, arrays by name."""
    with open(path, "wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
        for key, value in metadata.items():
            kind, data = _value(value)
            file.write(_text(key) + struct.pack("<I", kind) + data)
        offset = 0
        for name, array in tensors.items():
            shape = array.shape[::-1]
            file.write(_text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
            file.write(struct.pack("<IQ", TENSOR_F32, offset))
            offset += -(-4 * array.size // ALIGN) * ALIGN
        for array in tensors.values():
            file.write(bytes(-file.tell() % ALIGN))
            file.write(np.ascontiguousarray(array, dtype="<f4").tobytes())
        file.write(bytes(-file.tell() % ALIGN))
