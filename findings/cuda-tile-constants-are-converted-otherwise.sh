#!/usr/bin/env bash
# cuda.tile converts a constant otherwise than the kernel converts a number: ct.full of 500 in FP8
# is NaN where astype makes 448, and ct.full of 300 in int8 is 44, where x + 300 is an error.
#
# Versions: cuda-tile 1.7.0; tileiras, ptxas, NVVM and nvdisasm 13.5.37; sm_100, no GPU.
# Expected: ct.full((4,), v, dtype) holds what ct.astype(v, dtype) gives; what does not fit is an
# error, as it is beside a tile of integers.
# Seen: full(500, float8_e4m3fn) stores 0x7f, NaN, and full(1e6, float8_e5m2) 0x7c, Inf; astype is
# the instruction F2FP.SATFINITE, which makes 448 and 57344. full(300, int8), (-1, uint8) and (2**32
# + 5, int32) are 44, 255 (shown as -1 of i8) and 5, full(2.7, int32) is 2, without a word; x + 300,
# x == 300 and x + 2**31 raise "out of range". A float beside a float16 tile is no error: x * 1e10
# multiplies by Inf, x + 1e-8 adds 0. sum() of int8 and float16 tiles adds in that type, which NumPy
# widens.
# Why: constants are rounded by the Python front end, as in ml_dtypes, without saturation.
# For us: thresholds and fill values of FP8 kernels are clamped before they are written down. Our
# casts to FP8 (crates/softgpu, convert.rs) follow the instruction in either case; PTX has no FP8
# constants.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
    'cuda-tile==1.7.0' 'nvidia-cuda-tileiras==13.5.37' 'nvidia-cuda-nvcc==13.5.37' 'nvidia-nvvm==13.5.37' \
    'nvidia-cuda-nvdisasm==13.5.37' 'typing_extensions==4.16.0'
cat > "$work/run.py" <<'END'
import glob, importlib.util, io, re, subprocess, sys
import cuda.tile as ct
from cuda.tile.compilation import ArrayConstraint, CallingConvention, KernelSignature, export_kernel

work = sys.argv[1]
[tools] = glob.glob(work + "/venv/lib/python3*/site-packages/nvidia/cu13/bin")
count = 0


def array(dtype):
    return ArrayConstraint(dtype, 1, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=(),
                           may_alias_internally=False, stride_constant=(1,), base_addr_divisible_by=16)


def compiled(value, dtype, out, kind):
    """A kernel that stores an expression of the tile x, as its operations or as instructions."""
    global count
    count += 1
    path = f"{work}/kernel{count}.py"
    with open(path, "w") as file:
        file.write("import cuda.tile as ct\n\n\n@ct.kernel\ndef k(out, a):\n"
                   f"    x = ct.load(a, (0,), (4,))\n    r = {value}\n    ct.store(out, (0,), r)\n")
    spec = importlib.util.spec_from_file_location(f"kernel{count}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = KernelSignature([array(out), array(dtype)], CallingConvention.cutile_python_v1(), symbol="k")
    made = io.BytesIO()
    export_kernel(module.k, [signature], made, output_format=kind, gpu_code="sm_100")
    with open(work + "/made", "wb") as file:
        file.write(made.getvalue())
    tool = [tools + "/nvdisasm", "-c"] if kind == "cubin" else [tools + "/tileirdisasm"]
    return subprocess.run([*tool, work + "/made"], capture_output=True, text=True, check=True).stdout


def constant(value, dtype, out):
    """The last constant that is no index; "error" if the front end refuses it."""
    try:
        text = compiled(value, dtype, out, "tileir_bytecode")
    except Exception as error:
        return "error: out of range" if "out of range" in str(error) else f"error: {type(error).__name__}"
    return re.findall(r"constant <\w+: ([^>]+)> : (?!tile<i32>)", text)[-1]


changed = []


def row(what, seen, wanted):
    print(f"{what:52} {seen}")
    if seen != wanted:
        changed.append(what)


e4m3, e5m2, f16, i8, u8, i32 = ct.float8_e4m3fn, ct.float8_e5m2, ct.float16, ct.int8, ct.uint8, ct.int32
for what, out, wanted in [("500.0, ct.float8_e4m3fn", e4m3, "0x7F"), ("1e6, ct.float8_e5m2", e5m2, "0x7C"), ("300, ct.int8", i8, "44"),
                          ("-1, ct.uint8", u8, "-1"), ("2**32 + 5, ct.int32", i32, "5"), ("2.7, ct.int32", i32, "2"),
                          ("1e6, ct.float16", f16, "0x7C00")]:
    row(f"ct.full((4,), {what})", constant(f"ct.full((4,), {what})", i32, out), wanted)
for name, dtype in (("float8_e4m3fn", e4m3), ("float8_e5m2", e5m2)):
    text = compiled(f"ct.astype(x, ct.{name})", ct.float32, dtype, "cubin")
    row(f"ct.astype(x, ct.{name})", re.findall(r"F2FP[.A-Z0-9]*", text)[0].split(".")[:3], ["F2FP", "SATFINITE", name[7:11].upper()])
for what, dtype, out in [("x + 300", i8, i8), ("x == 300", u8, ct.bool_), ("x + 2**31", i32, i32)]:
    row(f"{what} of {dtype}", constant(what, dtype, out), "error: out of range")
row("x * 1e10 of float16", constant("x * 1e10", f16, f16), "0x7C00")
row("x + 1e-8 of float16", constant("x + 1e-8", f16, f16), "0.000000e+00")
for name, dtype, wanted in (("int8", i8, "addi: tile<i8>"), ("float16", f16, "addf: tile<f16>")):
    text = compiled("ct.sum(x)", dtype, dtype, "tileir_bytecode")
    found = re.search(r"= (add[if]) .*(tile<\w+>)\s*\n\s*yield", text)
    row(f"ct.sum(x) of {name}", f"{found[1]}: {found[2]}", wanted)
if changed:
    sys.exit(f"changed: {changed}")
END
"$work/venv/bin/python" "$work/run.py" "$work"
