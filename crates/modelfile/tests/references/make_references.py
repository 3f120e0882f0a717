"""Writes references of quantised weights: files whose tensor `expected` a reference library computed.

Run by hand, with torch, in a folder with the unpacked source packages of autoawq 0.2.9, gptqmodel
7.7.0 and compressed-tensors 0.20.1 (as a folder `compressed_tensors`):

    python3 make_references.py OUTPUT_FOLDER

None of the libraries is imported, as they need GPUs and newer versions of torch: the functions that
unpack and dequantise are taken out of their sources and called. Products of F16 are computed in F32
and rounded, which gives the same, as torch on a CPU has no F16.
"""

import __future__
import ast
import json
import struct
import sys
import types

import torch

AWQ = "autoawq-0.2.9/awq/utils/packing_utils.py"
GPTQ = "gptqmodel-7.7.0/gptqmodel/nn_modules/qlinear/__init__.py"
PACK = "compressed_tensors/compressors/pack_quantized/helpers.py"
FP4 = "compressed_tensors/compressors/nvfp4/helpers.py"
FORWARD = "compressed_tensors/quantization/lifecycle/forward_helpers.py"
NAMES = {
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
}


def functions(path, names):
    """Functions and constants of a source file, without what it imports."""
    import math

    found = {"torch": torch, "t": torch, "math": math, "sys": sys}
    source = open(path).read()
    # Older versions of torch index with 64 bits alone.
    source = source.replace("dtype=torch.int32,\n        device=izeros", "device=izeros")
    flags = __future__.annotations.compiler_flag
    for node in ast.walk(ast.parse(source)):
        targets = [getattr(it, "id", "") for it in getattr(node, "targets", [])]
        if getattr(node, "name", None) in names or set(targets) & names:
            node.decorator_list = []
            exec(compile(ast.Module([node], []), path, "exec", flags=flags), found)
    return types.SimpleNamespace(**found)


def save(name, tensors):
    head, data = {}, b""
    for key, tensor in tensors.items():
        kind = None
        if isinstance(tensor, tuple):
            tensor, kind = tensor
        kind = kind or NAMES[tensor.dtype]
        tensor = tensor.contiguous()
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.view(torch.int16)
        begin = len(data)
        data += tensor.numpy().tobytes()
        offsets = [begin, len(data)]
        head[key] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(head, separators=(",", ":")).encode()
    with open(f"{sys.argv[1]}/{name}.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def words(*shape):
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int64).to(torch.int32)


def awq(outputs, inputs, group):
    library = functions(AWQ, {"unpack_awq", "reverse_awq_order", "dequantize_gemm", "AWQ_REVERSE_ORDER"})
    codes, zeros = words(inputs, outputs // 8), words(inputs // group, outputs // 8)
    scales = (torch.rand(inputs // group, outputs) * 0.1).half()
    weight = library.dequantize_gemm(codes, zeros, scales.float(), 4, group)
    expected = weight.half().t()
    save("awq", {"m.qweight": codes, "m.qzeros": zeros, "m.scales": scales, "expected": expected})


def gptq(bits, pack, outputs, inputs, group):
    names = {"dequantize_weight", "_dequantize_from_codes", "_torch_right_shift", "_torch_left_shift"}
    library = functions(GPTQ, names)
    codes = words(inputs * bits // 32, outputs)
    zeros = torch.randint(1, 1 << bits, (inputs // group, outputs))
    packed = lambda zeros: pack((zeros - (1 << (bits - 1))).to(torch.int8), bits)
    scales = (torch.rand(inputs // group, outputs) * 0.1).half()
    group_of = torch.randint(0, inputs // group, (inputs,)).to(torch.int32)
    layer = types.SimpleNamespace(
        planar=False, bits=bits, maxq=(1 << bits) - 1, pack_factor=32 // bits,
        qweight=codes, qzeros=packed(zeros), scales=scales.float(), g_idx=group_of,
        dequant_dtype=torch.int16 if bits == 8 else torch.int8, in_features=inputs,
        _init_wf_unsqueeze_buffers=lambda: None,
    )
    if bits == 3:
        shifts = [0, *range(1, 32, 3)], [0, *range(2, 30, 3), 0]
        shifts = [[*range(0, 31, 3), 0], shifts[0], shifts[1]]
        shifts = torch.tensor([row[:12] for row in shifts], dtype=torch.int32)
        layer.wf_unsqueeze_zero = shifts.reshape(1, 1, 3, 12)
        layer.wf_unsqueeze_neg_one = shifts.reshape(1, 3, 12, 1)
    else:
        shifts = torch.arange(0, 32, bits, dtype=torch.int32)
        layer.wf_unsqueeze_zero = shifts.reshape(1, 1, -1)
        layer.wf_unsqueeze_neg_one = shifts.reshape(1, -1, 1)
    layer._dequantize_from_codes = lambda *parts, num_itr=1: library._dequantize_from_codes(
        layer, *parts, num_itr
    )
    weight = library.dequantize_weight(layer)
    save(f"gptq{bits}", {
        "m.qweight": codes, "m.qzeros": packed(zeros - 1), "m.scales": scales,
        "m.g_idx": group_of, "expected": weight.half().t(),
    })


def packed(bits, has_zeros, pack, dequantize, outputs, inputs, group):
    most = 1 << (bits - 1)
    codes = torch.randint(-most, most, (outputs, inputs), dtype=torch.int8)
    zeros = torch.randint(-most, most, (outputs, inputs // group), dtype=torch.int8)
    scales = (torch.rand(outputs, inputs // group) * 0.1).to(torch.bfloat16)
    each = lambda tensor: tensor.repeat_interleave(group, 1)
    tensors = {
        "m.weight_packed": pack(codes, bits),
        "m.weight_scale": scales,
        "m.weight_shape": torch.tensor([outputs, inputs]),
        "expected": dequantize(codes, each(scales), each(zeros) if has_zeros else None),
    }
    if has_zeros:
        tensors["m.weight_zero_point"] = pack(zeros, bits, packed_dim=0)
    save(f"packed{bits}{'z' if has_zeros else ''}", tensors)


def nvfp4(dequantize, outputs, inputs):
    library = functions(FP4, {"unpack_fp4_from_uint8", "kE2M1ToFloat"})
    codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8)
    exponent = torch.randint(1, 15, (outputs, inputs // 16))
    fraction = torch.randint(0, 8, (outputs, inputs // 16))
    scales = ((1 + fraction / 8.0) * 2.0 ** (exponent - 7)).to(torch.bfloat16)
    one = torch.tensor([448.0 * 6 / 3.7])
    values = library.unpack_fp4_from_uint8(codes, outputs, inputs)
    save("nvfp4", {
        "m.weight_packed": codes,
        "m.weight_scale": ((exponent * 8 + fraction).to(torch.uint8), "F8_E4M3"),
        "m.weight_global_scale": one,
        "expected": dequantize(values, scales.repeat_interleave(16, 1), global_scale=one),
    })


def main():
    torch.manual_seed(7)
    pack = functions(PACK, {"pack_to_int32"}).pack_to_int32
    dequantize = functions(FORWARD, {"_dequantize"})._dequantize
    awq(16, 64, 32)
    for bits in (2, 3, 4, 8):
        gptq(bits, pack, 32, 64, 32)
    for bits, has_zeros in ((4, False), (4, True), (8, False), (3, True)):
        packed(bits, has_zeros, pack, dequantize, 16, 64, 32)
    nvfp4(dequantize, 16, 64)


main()
