"""Builds and runs sample programs of others over the software device's runtime library.

    samples.py build FOLDER --out OUT [--nvcc PATH] [--names A,B]
    samples.py run --out OUT [--fercuda PATH] [--names A,B]
    samples.py count OUT...

FOLDER is a copy of NVIDIA's cuda-samples or of HeCBench, which stays outside of this repository.
`build` compiles each program by nvcc with `-cudart shared` and PTX for sm_90 alone; `run` starts
each under `fercuda check` (or `fercuda run --device soft` with `--no-checks`), and OUT/results.json
keeps what came of it. `count` prints a table of the results.

A program is *right* if it ends with status 0, no line of it says that something failed, and, if
it verifies its results at all, a line says that they are right.
"""

import argparse
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

# Libraries that NVIDIA sells or gives apart from the runtime: no part of what is tested here.
VENDOR = (
    "cublas|cublasLt|cufft|cufftw|curand|cusparse|cusolver|nppc?|nppi\\w*|npps|nvjpeg|cudnn|nccl|"
    "cutensor|nvgraph|nvJitLink|nvrtc|nvidia-ml|cufile|nvToolsExt|nvshmem"
)
# Headers and libraries of the host that a machine without a screen or a cluster lacks.
HOST = (
    "GL|GLU|glut|GLEW|EGL|glfw3?|vulkan|X11|mpi|mpi_cxx|freeimage|FreeImage|boost_\\w+|gsl|hdf5|"
    "netcdf|opencv_\\w+|omp|tbb|OpenCL|rt_mpi|cudadevrt_missing|nvsci\\w*|tiff|png|jpeg"
)
WRONG = re.compile(
    r"\bfail(ed|ure|s)?\b|\bFAIL\b|\bmismatch(es)?\b|\bincorrect\b|verification error|\bwrong\b"
    r"|\bERROR\b|CUDA error|results? (do|does) not match|not supported|not equal",
    re.I,
)
# Lines that contain such a word and say that all is well.
NOT_WRONG = re.compile(
    r"(\b0|\bno|\bzero) (errors?|failures?|failed|mismatch(es)?|wrong)\b"
    r"|error[^:=]*[:=]\s*[\d.]+e-\d+|assert|as expected|(errors?|failures?|failed|mismatch(es)?|fails?|incorrect)\s*(rate|count|number)?\s*[:=]\s*(0(\.0*)?(e[+-]?\d+)?%?\b|no\b|none\b)"
    r"|(max|mean|avg|average|rel|relative|abs|absolute|rms|l1|l2|l_?inf|norm|sum|total)\w*[ _-]*(of )?error",
    re.I,
)
RIGHT = re.compile(
    r"\bpass(ed|es)?\b|\bsuccess(ful|fully)?\b|\bcorrect\b|\bverified\b|\bOK\b|\bmatch(es)?\b"
    r"|\bvalid\b|(\b0|\bno) (errors?|mismatch(es)?)\b|errors?\s*[:=]\s*0",
    re.I,
)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


class Toolchain:
    """nvcc behind a script that sets the target and the shared runtime library."""

    def __init__(self, nvcc: str, out: Path, arch: str, prefix: str) -> None:
        self.prefix = shlex.split(prefix)
        real = Path(nvcc).resolve()
        root = real.parent.parent
        libraries = next(d for d in (root / "lib64", root / "lib") if d.is_dir())
        self.folder = out / "toolchain"
        self.folder.mkdir(parents=True, exist_ok=True)
        # The wheels have libraries without the names that a linker looks for.
        links = {"libcudadevrt.a": "libcudadevrt.a", "libcudart.so": "libcudart.so.13"}
        for name, target in links.items():
            link = self.folder / name
            if link.is_symlink() or link.exists():
                link.unlink()
            link.symlink_to(libraries / target)
        # NVIDIA has this header in a package of its own.
        (self.folder / "cuda_profiler_api.h").write_text(
            "#pragma once\n#include <cuda_runtime_api.h>\n"
            '#ifdef __cplusplus\nextern "C" {\n#endif\n'
            "cudaError_t cudaProfilerStart(void);\ncudaError_t cudaProfilerStop(void);\n"
            "#ifdef __cplusplus\n}\n#endif\n"
        )
        self.script = self.folder / "nvcc"
        self.script.write_text(
            "#!/usr/bin/env python3\n"
            "import os, sys\n"
            "words, skip = [], False\n"
            "for word in sys.argv[1:]:\n"
            "    if skip:\n"
            "        skip = False\n"
            "    elif word in ('-arch', '-gencode', '--gpu-architecture', '-code', '-cudart', '--generate-code', '-ccbin'):\n"
            "        skip = True\n"
            "    elif word.startswith(('-arch=', '-gencode', '--gpu-arch', '--gpu-code', '-code=', '-cudart', '--cudart', '--generate-code', '-ccbin')):\n"
            "        pass\n"
            "    else:\n"
            "        words.append(word)\n"
            f"os.execv({str(real)!r}, [{str(real)!r}, '-cudart', 'shared',"
            f" '-gencode', 'arch=compute_{arch},code=compute_{arch}', '-L{self.folder}', '-I{self.folder}', *words])\n"
        )
        self.script.chmod(0o755)

    def link_driver(self, driver: str | None) -> None:
        if driver:
            link = self.folder / "libcuda.so"
            if link.is_symlink() or link.exists():
                link.unlink()
            link.symlink_to(Path(driver).resolve())


def find_programs(folder: Path) -> dict[str, Path]:
    """Programs by name: folders with a Makefile and `-cuda` in their name, or of cuda-samples."""
    source = folder / "src"
    if source.is_dir():
        found = {d.name.removesuffix("-cuda"): d for d in sorted(source.glob("*-cuda"))}
        return {name: d for name, d in found.items() if d.is_dir()}
    files = sorted(folder.glob("Samples/[0-6]_*/*/CMakeLists.txt"))
    return {file.parent.name: file.parent for file in files}


def reason(log: str, text: str) -> str:
    """Why a program could not be built: `vendor: X`, `host: X` or `error`."""
    # The linker's or the preprocessor's own words.
    needs = re.findall(r"cannot find -l(\S+?):", log)
    needs += re.findall(r"fatal error: (\S+): No such file", log)
    needs += re.findall(r"cannot open source file \"(\S+)\"", log)
    for need in needs:
        name = need.split("/")[-1].removesuffix(".h").removesuffix(".hpp")
        if re.match(rf"({VENDOR})", name, re.I) or "helper_cublas" in name:
            return f"vendor: {need}"
    for need in needs:
        return f"host: {need}"
    if re.search(r"undefined reference to `(gl|egl|glut|gl[A-Z]\w*|XOpen)", log):
        return "host: OpenGL"
    if re.search(r"(mpicc|mpicxx|cmake|nvfortran|nvc\+\+): (command )?not found", log):
        return "host: compiler"
    if re.search(r"No rule to make target|Makefile: No such", log):
        return "host: makefile"
    return "error"


def build_make(path: Path, tools: Toolchain, limit: int) -> tuple[list[str], str]:
    """Builds a folder with a Makefile; returns its run command and the log."""
    override = [f"CC={tools.script}", f"NVCC={tools.script}", f"CXX={tools.script}"]
    text = read(path / "Makefile")
    chosen = [it for it in override if re.search(rf"^{it.split('=')[0]}\s*[:?]?=\s*nvcc", text, re.M)]
    env = dict(os.environ, PATH=f"{tools.folder}:{os.environ['PATH']}", LIBRARY_PATH=str(tools.folder))
    make = ["make", "-C", str(path), *chosen, "ARCH=sm_90"]
    done = subprocess.run([*tools.prefix, *make], capture_output=True, text=True, errors="replace", timeout=limit, env=env)
    log = done.stdout + done.stderr
    if done.returncode:
        return [], log
    dry = subprocess.run(
        [*make, "-n", "run"], capture_output=True, text=True, errors="replace", timeout=60, env=env
    )
    lines = [line.strip() for line in dry.stdout.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("make", "#", "echo", "rm "))]
    lines = [line for line in lines if "nvcc" not in line]
    return lines, log


def build_sample(path: Path, tools: Toolchain, limit: int) -> tuple[list[str], str]:
    """Builds a folder of cuda-samples by one command; returns its run command and the log."""
    text = read(path / "CMakeLists.txt")
    files = [f for f in sorted(path.iterdir()) if f.suffix in (".cu", ".cpp", ".c")]
    named = re.search(rf"add_executable\(\s*{re.escape(path.name)}\s+([^)]*)\)", text)
    if named:
        words = [w for w in named.group(1).split() if not w.startswith("$")]
        listed = [path / w for w in words]
        files = [f for f in listed if f.suffix in (".cu", ".cpp", ".c") and f.is_file()]
    libraries = re.findall(r"CUDA::(\w+)", text)
    vendor = [it for it in libraries if re.match(rf"({VENDOR})$", it) or it.startswith("npp")]
    if vendor or "libnvvm" in text.lower():
        return [], f"cannot find -l{vendor[0] if vendor else 'nvvm'}: it is a library of NVIDIA's"
    command = [str(tools.script), "-O2", "-std=c++17", "-w", "--extended-lambda", "--threads", "1"]
    command += ["-I", str(path), "-I", str(path / "inc"), "-I", str(path.parents[2] / "Common"), "-o", str(path / path.name)]
    if re.search(r"CUDA_SEPARABLE_COMPILATION\s+ON", text):
        command += ["-rdc=true"]
    if "cuda_driver" in libraries or "cuda.h" in "".join(read(f) for f in files):
        command += ["-lcuda"]
    if "OpenMP" in text:
        command += ["-Xcompiler", "-fopenmp"]
    command += [str(f) for f in files]
    done = subprocess.run([*tools.prefix, *command], capture_output=True, text=True, errors="replace", timeout=limit)
    log = done.stdout + done.stderr
    # Device code that the program loads from a file.
    for kind, option in (("FATBIN", "-fatbin"), ("PTX", "-ptx")):
        file = re.search(rf"set\(CUDA_{kind}_FILE\s+\"\$\{{CMAKE_CURRENT_BINARY_DIR\}}/([^\"]+)\"", text)
        source = re.search(r"set\(CUDA_KERNEL_SOURCE\s+\"\$\{CMAKE_CURRENT_SOURCE_DIR\}/([^\"]+)\"", text)
        if file and source and not done.returncode:
            device = [str(tools.script), "-w", "-I", str(path.parents[2] / "Common"), option]
            device += ["-o", str(path / file[1]), str(path / source[1])]
            done = subprocess.run(
                [*tools.prefix, *device], capture_output=True, text=True, errors="replace", timeout=limit
            )
            log += done.stdout + done.stderr
    return ([] if done.returncode else [f"./{path.name}"]), log


def shrink(path: Path) -> None:
    """Makes sizes and repetitions smaller that a sample has as constants (`sizes.json`)."""
    table = json.loads(read(Path(__file__).with_name("sizes.json")) or "{}")
    for name, pattern, replacement in table.get(path.name, []):
        file = path / name
        text = read(file)
        if (changed := re.sub(pattern, replacement, text)) != text:
            file.write_text(changed, encoding="utf-8")


def build(arguments: argparse.Namespace) -> None:
    out = Path(arguments.out).resolve()
    tools = Toolchain(arguments.nvcc or shutil.which("nvcc") or "nvcc", out, arguments.arch, arguments.prefix)
    tools.link_driver(arguments.driver)
    results = Results(out)
    programs = find_programs(Path(arguments.folder).resolve())
    for name, path in programs.items():
        if arguments.names and name not in arguments.names:
            continue
        known = results.of(name)
        if not arguments.names and "built" in known and not (arguments.again and not known["built"]):
            continue
        started = time.monotonic()
        is_make = (path / "Makefile").is_file()
        if not arguments.whole:
            shrink(path)
        try:
            lines, log = (build_make if is_make else build_sample)(path, tools, arguments.limit)
        except subprocess.TimeoutExpired:
            lines, log = [], "the build took too long"
        entry: dict[str, object] = {"built": bool(lines), "folder": str(path), "lines": lines}
        if not lines:
            entry["reason"] = reason(log, read(path / "Makefile"))
            entry["log"] = log[-2500:]
        results.set(name, entry)
        print(f"{name}: {lines or entry['reason']} ({time.monotonic() - started:.0f} s)", flush=True)


class Results:
    """results.json of a folder, read before and written after each change."""

    def __init__(self, out: Path) -> None:
        self.file = out / "results.json"
        out.mkdir(parents=True, exist_ok=True)

    def all(self) -> dict[str, dict[str, object]]:
        return json.loads(self.file.read_text()) if self.file.is_file() else {}

    def of(self, name: str) -> dict[str, object]:
        return self.all().get(name, {})

    def set(self, name: str, entry: dict[str, object]) -> None:
        with open(self.file.with_suffix(".lock"), "w") as lock:
            # `build` and `run` may work at once.
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.replace(name, entry)

    def replace(self, name: str, entry: dict[str, object]) -> None:
        results = self.all()
        results[name] = {**results.get(name, {}), **entry}
        draft = self.file.with_suffix(".draft")
        draft.write_text(json.dumps(results, indent=1, sort_keys=True))
        draft.replace(self.file)


def verdict(code: int | None, text: str) -> str:
    """What a program's status and its own lines say; those of the device are none of its own."""
    if code is None:
        return "slow"
    lines = [line for line in text.splitlines() if not line.startswith(("feRcuda", "   "))]
    if re.search(r"\bwaiv(e|ing|ed)\b|^Two or more GPUs .* required", text, re.I | re.M):
        return "waived"
    if "__cudaCDP" in text or "cudaGraphSetConditional" in text:
        return "device runtime"
    if code != 0 and re.search(r"(open|load|read|find|import)\w*( \w+)? file|no such file|cannot be opened", text, re.I):
        return "data"
    wrong = [line for line in lines if WRONG.search(line) and not NOT_WRONG.search(line)]
    if code != 0:
        return "status"
    if wrong:
        return "wrong"
    return "right" if any(RIGHT.search(line) for line in lines) else "ran"


def smaller(line: str) -> list[str]:
    """The command with smaller numbers: fewer repetitions first, then smaller sizes too."""
    words = line.split()
    numbers = [at for at, word in enumerate(words) if at and re.fullmatch(r"\d+", word)]
    tried = []
    for divisor in (1, 16, 256):
        changed = list(words)
        for at in numbers:
            value = int(words[at])
            changed[at] = str(value if value <= 64 else max(value // divisor, 16))
        if numbers and int(changed[numbers[-1]]) > 1:
            changed[numbers[-1]] = "1" if int(words[numbers[-1]]) <= 1000 or divisor == 1 else changed[numbers[-1]]
        tried.append(" ".join(changed))
    return [it for it in dict.fromkeys(tried) if it != line]


def execute(words: str, folder: Path, limit: int, env: dict[str, str]) -> tuple[int | None, str, float]:
    started = time.monotonic()
    child = subprocess.Popen(
        ["bash", "-c", words], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )
    try:
        text, _ = child.communicate(timeout=limit)
        code: int | None = child.returncode
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        text, _ = child.communicate()
        code = None
    # Ended by its limit of processor time.
    if code is not None and (code in (-9, -24, 137, 152)):
        code = None
    return code, text.decode("utf-8", "replace"), time.monotonic() - started


def run(arguments: argparse.Namespace) -> None:
    out = Path(arguments.out).resolve()
    results = Results(out)
    table = json.loads(read(Path(__file__).with_name("arguments.json")) or "{}")
    for name, entry in sorted(results.all().items()):
        if arguments.names and name not in arguments.names:
            continue
        is_done = "verdict" in entry and entry["verdict"] not in (arguments.again or "").split(",")
        if not entry.get("built") or (is_done and not arguments.names):
            continue
        folder = Path(str(entry["folder"]))
        lines = [str(line) for line in entry["lines"]][:2]
        if name in table:
            lines = [str(table[name])]
        whole = " && ".join(lines)
        attempts = [whole] if name in table or arguments.whole else smaller(lines[0]) or [whole]
        for line in attempts:
            script, env = line, dict(os.environ)
            if arguments.fercuda:
                words = [arguments.fercuda, "check", "--", "bash", "-c", script]
                if arguments.no_checks:
                    words = [arguments.fercuda, "run", "--device", "soft", "--", "bash", "-c", script]
                script = shlex.join(words)
            env.update(pair.split("=", 1) for pair in arguments.env)
            script = f"ulimit -t {arguments.cpu}; {script}"
            code, text, took = execute(script, folder, arguments.limit, env)
            what = verdict(code, text)
            if what != "slow":
                break
        result = {"verdict": what, "code": code, "text": text[-4000:], "took": round(took, 1), "ran": line}
        results.set(name, result)
        print(f"{name}: {what} (status {code}, {took:.0f} s) {line}", flush=True)


KINDS = {
    "right": "status 0, and lines that say that results are right",
    "ran": "status 0, and no line about results",
    "wrong": "a line that says that something failed",
    "status": "another status",
    "slow": "longer than the limit of processor time",
    "waived": "waived by itself: several GPUs, compression, a persisting L2 cache",
    "device runtime": "kernels that launch kernels, or set conditions of graphs",
    "data": "a file of data that the copy lacks",
    "vendor": "a library of NVIDIA's (cuBLAS, cuFFT, cuRAND, NPP, NVRTC ...)",
    "host": "something of the host that is not there (MPI, OpenGL, a compiler, data)",
    "error": "does not compile",
    "not run": "built and not run yet",
}


def count(arguments: argparse.Namespace) -> None:
    """Prints how many programs came to what, and the names where something is left to do."""
    tables: dict[str, dict[str, list[str]]] = {}
    for out in arguments.outs:
        label, _, folder = out.rpartition("=")
        kinds: dict[str, list[str]] = {}
        for name, entry in Results(Path(folder)).all().items():
            kind = str(entry.get("verdict", "not run"))
            if not entry.get("built"):
                kind = str(entry.get("reason")).split(":")[0]
            kinds.setdefault(kind, []).append(name)
        tables[label or folder] = kinds
    print("| what came of it | " + " | ".join(tables) + " |")
    print("|---|" + "---:|" * len(tables))
    for kind, meaning in KINDS.items():
        numbers = [len(kinds.get(kind, [])) for kinds in tables.values()]
        if any(numbers):
            print(f"| {meaning} | " + " | ".join(map(str, numbers)) + " |")
    for label, kinds in tables.items():
        for kind in ("wrong", "status", "slow", "error") if arguments.names else ():
            for name in sorted(kinds.get(kind, [])):
                print(f"- {label}: `{name}`: {kind}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    chores = parser.add_subparsers(required=True)
    it = chores.add_parser("build")
    it.add_argument("folder")
    it.add_argument("--out", required=True)
    it.add_argument("--nvcc")
    it.add_argument("--driver", help="a libcuda.so to link programs of the driver API to")
    it.add_argument("--arch", default="90")
    it.add_argument("--prefix", default="", help="words before each compile, such as 'nice -n 15'")
    it.add_argument("--limit", type=int, default=300)
    it.add_argument("--whole", action="store_true", help="leave sizes as they are")
    it.add_argument("--again", action="store_true", help="also those that could not be built")
    it.add_argument("--names", type=lambda text: text.split(","), default=[])
    it.set_defaults(chore=build)
    it = chores.add_parser("run")
    it.add_argument("--out", required=True)
    it.add_argument("--fercuda")
    it.add_argument("--no-checks", action="store_true")
    it.add_argument("--again", help="verdicts, separated by commas: programs with one of them run again")
    it.add_argument("--whole", action="store_true", help="with the arguments of the Makefiles")
    it.add_argument("--cpu", type=int, default=60, help="processor time of a program, in seconds")
    it.add_argument("--env", action="append", default=[])
    it.add_argument("--limit", type=int, default=120)
    it.add_argument("--names", type=lambda text: text.split(","), default=[])
    it.set_defaults(chore=run)
    it = chores.add_parser("count")
    it.add_argument("outs", nargs="+", help="folders of results, as FOLDER or LABEL=FOLDER")
    it.add_argument("--names", action="store_true", help="also what is not right, by name")
    it.set_defaults(chore=count)
    arguments = parser.parse_args()
    arguments.chore(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
