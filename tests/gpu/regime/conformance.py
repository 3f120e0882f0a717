"""Conformance cases of the hook that need a GPU machine: named cases, each a program that is run
bare and governed.

    python3 conformance.py FERCUDA OUT_DIR [--only NAME,...] [--record FILE] [--device soft] [--cudart DIR,...]

Both runs must print the same, line by line. The ledger of the governed run must show that every
allocation was counted, that none fell back to the driver, that nothing is ungoverned and nothing
left. A case that cannot run here is listed as skipped, with the reason. Needs a C compiler; for the
cases of the runtime library `libcudart.so.13` and `libcudart_static.a`, of a toolkit or of NVIDIA's
wheels.

--record writes the data of docs/conformance.md. --device soft runs the cases that need no GPU. Exit
status 1 if any case fails.
"""

import argparse
import ctypes
import difflib
import glob
import json
import os
import pathlib
import random
import shutil
import site
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PROGRAMS = ROOT / "crates/hook/tests/programs"
LONGEST_S = 180
CASES = {}


class Skipped(Exception):
    """The case cannot run here, for this reason."""


class Failed(Exception):
    """The case could not be evaluated."""


def case(function):
    CASES[function.__name__] = function
    return function


class Bench:
    """Paths, and properties of the machine."""

    def __init__(self, args):
        self.fercuda = str(pathlib.Path(args.fercuda).resolve())
        self.out = args.out.resolve()
        self.kind = args.device
        self.compiler = next(filter(None, map(shutil.which, [os.environ.get("CC", "cc"), "gcc", "clang"])), None)
        self.cudart = cudart_folders(args.cudart)
        self.seed = random.SystemRandom().randrange(1 << 32)
        if self.kind == "soft":
            self.driver = self.out / "driver/libcuda.so.1"
            beside = pathlib.Path(self.fercuda).parent
            library = next(p for p in (beside / "deps/libcuda.so", beside / "libcuda.so") if p.exists())
            self.driver.parent.mkdir(exist_ok=True)
            self.driver.unlink(missing_ok=True)
            self.driver.symlink_to(library)
        else:
            self.driver = loaded("libcuda.so.1")

    def environment(self, more):
        own = {n: v for n, v in os.environ.items() if not n.startswith("FERCUDA_") and n != "LD_PRELOAD"}
        if self.kind == "soft":
            own["LD_LIBRARY_PATH"] = str(self.driver.parent)
        return own | more

    def compiled(self, source, *libraries):
        """Compiles a program and links it."""
        if not self.compiler:
            raise Skipped("no C compiler")
        program = self.out / ("-".join([source.stem, *(pathlib.Path(n).stem for n in libraries[:1])]).replace(".", "-"))
        command = [self.compiler, "-O1", "-w", "-o", program, source, *libraries, "-ldl", "-lrt", "-lpthread"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LONGEST_S)
        if done.returncode:
            raise Failed(f"does not compile: {done.stderr.strip()[-500:]}")
        return program

    def of_the_driver(self, source):
        return self.compiled(source, self.driver)

    def run(self, command, environment, label):
        errors = self.out / f"{label}.err"
        with open(errors, "w") as file:
            try:
                done = subprocess.run(
                    [str(c) for c in command],
                    env=self.environment(environment),
                    stdout=subprocess.PIPE,
                    stderr=file,
                    stdin=subprocess.DEVNULL,
                    text=True,
                    errors="replace",
                    timeout=LONGEST_S,
                )
            except subprocess.TimeoutExpired:
                raise Failed(f"{label}: took longer than {LONGEST_S} s")
        (self.out / f"{label}.out").write_text(done.stdout)
        return done.returncode, done.stdout, errors.read_text(errors="replace")

    def governed(self, command, environment, label, options=()):
        """Runs a command under the hook; returns also its ledgers."""
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o700)
            file = pathlib.Path(folder, "ledgers.json")
            wrapped = [self.fercuda, "run", "--device", self.kind, "--json", file, *options, "--", *command]
            ran = self.run(wrapped, environment | {"XDG_RUNTIME_DIR": folder}, label)
            try:
                processes = json.loads(file.read_text())["processes"]
            except (OSError, ValueError, KeyError) as error:
                raise Failed(f"{label}: no ledgers: {error}; {ran[2][-300:]}")
        return *ran, processes

    def same(self, command, environment=None, label=None, options=()):
        """Failures of a program that is run bare and governed."""
        environment = environment or {}
        label = label or "-".join([command[0].name, *command[1:2]])
        bare, said, bare_errors = self.run(command, environment, f"{label}-bare")
        status, printed, errors, processes = self.governed(command, environment, f"{label}-governed", options)
        problems = []
        if bare != 0 or not said.endswith("end\n"):
            problems.append(f"bare, it ended with {bare}: {(said + bare_errors)[-200:].strip()}")
        if status != bare:
            problems.append(f"governed, it ended with {status}: {(printed + errors)[-200:].strip()}")
        if said != printed:
            lines = difflib.unified_diff(said.splitlines(), printed.splitlines(), "bare", "governed", n=0, lineterm="")
            problems.append("says something else: " + " | ".join(list(lines)[3:11]))
        problems += judged(processes, counted(errors))
        return [f"{label} (seed {self.seed}): {p}" for p in problems]


def counted(errors):
    """The program's own count of allocations, if it prints one."""
    lines = [line for line in errors.splitlines() if line.startswith("allocations ")]
    return int(lines[-1].split()[1]) if lines else 1


def judged(processes, allocations, live=0):
    """Failures in the ledgers of a run that made at least `allocations` allocations.

    The driver's figures are of the whole device: what one of two processes takes later is not
    accounted in the other's ledger. So of several processes it is not asked.
    """
    devices = [d for p in processes for d in p["devices"]]
    total = lambda name: sum(d[name] for d in devices)
    fallback = sum(d["event_counts"].get("fallback", 0) for d in devices)
    problems = []
    if total("allocs") < allocations:
        problems.append(f"{allocations} allocations, of which the ledger saw {total('allocs')}")
    alone = len(processes) == 1
    for what, is_, wanted in (
        ("ungoverned bytes", total("ungoverned_bytes") if alone else 0, 0),
        ("fallback", fallback, 0),
        ("live bytes", total("live_bytes"), live),
    ):
        if is_ != wanted:
            problems.append(f"{what}: {is_} and not {wanted}")
    return problems


# ---- the cases
# --------------------------------------------------------------------------------------------------


def runtime(bench, name):
    found = next((f for f in (folder / name for folder in bench.cudart) if f.exists()), None)
    if bench.kind == "soft":
        raise Skipped("asks the driver for a table that is not documented")
    if not found:
        raise Skipped(f"no {name} here; try --cudart")
    libraries = [found] if name.endswith(".a") else [found, f"-Wl,-rpath,{found.parent}"]
    program = bench.compiled(HERE / "runtime.c", *libraries)
    problems = []
    for part in ("calls", "wrong_frees", "streams", "threads", "out_of_memory", "reset", "devices"):
        problems += bench.same([program, part, str(bench.seed)])
    return problems


@case
def shared_libcudart(bench):
    return runtime(bench, "libcudart.so.13")


@case
def static_libcudart(bench):
    return runtime(bench, "libcudart_static.a")


@case
def green_contexts(bench):
    if bench.kind == "soft":
        raise Skipped("the software device has none")
    return bench.same([bench.of_the_driver(HERE / "green.c"), str(bench.seed)])


def on_two_devices(bench, *parts):
    if bench.kind != "soft" and len(devices_of(bench)) < 2:
        raise Skipped("one GPU")
    program = bench.of_the_driver(PROGRAMS / "calls.c")
    return [problem for part in parts for problem in bench.same([program, part], {"FERCUDA_SOFT_DEVICES": "2"})]


@case
def copies_between_devices(bench):
    return on_two_devices(bench, "peers")


@case
def access_between_devices(bench):
    """Kernels of one device read and write memory of another, allocated before they may and
    after."""
    return on_two_devices(bench, "peer_access", "pool_access")


@case
def calls_are_answered_as_by_the_driver(bench):
    """The suite's own programs of single calls, over NVIDIA's driver."""
    program = bench.of_the_driver(PROGRAMS / "calls.c")
    # Those that free all they allocate, print no figures of the device, and need neither a limit
    # nor a second one. Not wrong_frees: NVIDIA's driver 580 crashes where memory of cuMemAlloc is
    # freed twice by cuMemFreeAsync.
    parts = "crossed_frees pitches captured_frees destroy".split()
    return [problem for part in parts for problem in bench.same([program, part])]


SHARED = {
    "close_order": ["opened 0 0 0, the same again 1", "close inside refused 1", "again 0, wrong 0"],
    "freed_while_open": ["given again 0, wrong there 0", "open what was freed: 1", "wrong here 0"],
    "importer_dies": ["given again 1"],
    "exporter_dies": ["exported 0, open 0", "wrong 0", "open again: 1"],
    "context_ends": ["open what ended: 1", "open 0, wrong 0"],
    "capable": ["0: attribute 0 says 1, list 0 says 1 of 8000, handle 0", "2: attribute 0 says 0, list 0 says 0 of 1000, handle 1"],
    "random_order": ["wrong 0, refused 0, stale 0, left 0", "enough 1"],
    "forged": ["made up: 0 opened, 0 answered otherwise", "as it was: 0, wrong 0"],
}


@case
def memory_is_shared_between_processes(bench):
    """By legacy handles of blocks in slabs: written here, read there, changed there, read here; and
    all ends."""
    program = bench.of_the_driver(PROGRAMS / "ipc.c")
    seed = str(bench.seed)
    problems = bench.same([program, "both_ways", seed], options=["--ipc"])
    for part, lines in SHARED.items():
        label = f"ipc-{part}"
        status, said, errors, processes = bench.governed([program, part, seed], {}, label, ["--ipc"])
        missing = [line for line in lines if line not in said.splitlines()]
        if status or missing:
            problems.append(f"{label} (seed {seed}): ended with {status}, said not {missing}: {(said + errors)[-400:]}")
        if not sum(d["allocs"] for p in processes for d in p["devices"]):
            problems.append(f"{label}: nothing was pooled")
    return problems


@case
def who_has_no_hook_opens_no_block(bench):
    """The driver rejects a handle of ours with an error; its own handles are passed through."""
    program = bench.of_the_driver(PROGRAMS / "ipc.c")
    status, said, errors, _ = bench.governed([program, "without_hook", str(bench.seed)], {}, "ipc-without_hook", ["--ipc"])
    wanted = ["refused 1", "exported 0, open 0", "wrong 0"]
    if status == 0 and all(line in said.splitlines() for line in wanted):
        return []
    return [f"ended with {status}: {(said + errors)[-400:]}"]


@case
def descriptors_of_address_ranges(bench):
    """A dmabuf of a block, of a part of one, of what is freed: as bare, over both backings."""
    program = bench.of_the_driver(PROGRAMS / "dmabuf.c")
    mapped = bench.same([program, "ranges"], label="dmabuf-vmm")
    return mapped + bench.same([program, "ranges"], label="dmabuf-slabs", options=["--ipc"])


@case
def nvml_says_what_the_driver_says(bench):
    """NVML's memory figures equal cuMemGetInfo's, with and without a limit, and the ledger's."""
    if bench.kind == "soft":
        raise Skipped("there is no NVML")
    command = [sys.executable, str(HERE / "nvml.py")]
    status, said, errors = bench.run(command, {}, "nvml-bare")
    if status:
        raise Failed(f"bare, it ended with {status}: {errors[-300:]}")
    before = json.loads(said)
    problems = []
    for limit in (None, 8 << 30):
        options = ["--limit", str(limit)] if limit else []
        label = f"nvml-limit-{limit}"
        status, said, errors, processes = bench.governed(command, {}, label, options)
        if status:
            problems.append(f"{label}: ended with {status}: {errors[-300:]}")
            continue
        figures = json.loads(said)
        for when in ("made", "held", "freed"):
            wanted, bare = figures[when]["driver"], before[when]
            for version in ("nvml", "nvml_v2"):
                if figures[when][version] != wanted:
                    problems.append(f"{label}, {when}: {version} says {figures[when][version]}, the driver {wanted}")
            if wanted["total"] != (limit or bare["driver"]["total"]):
                problems.append(f"{label}, {when}: {wanted['total']} in all")
        used = {when: figures[when]["driver"]["used"] for when in ("made", "held", "end")}
        # Within a limit the figures are the pool's, to the byte. Else they are the driver's, which
        # needs some for tables.
        more, tolerance = used["held"] - used["made"], 0 if limit else 32 << 20
        if not figures["bytes"] <= more <= figures["bytes"] + tolerance:
            problems.append(f"{label}: {figures['bytes']} bytes are held, {more} more are used")
        if limit and figures["early"]["nvml"] != {"total": limit, "free": limit, "used": 0}:
            problems.append(f"{label}, before the driver is used: {figures['early']['nvml']}")
        # The last block is still held when the process ends: the ledger's figure is of that time.
        device = next(d for p in processes for d in p["devices"] if d["device"] == 0)
        if limit:
            pieces = sum(g["bytes"] for g in device["governed"] if g["kind"] in ("linear", "managed", "vmm", "array"))
            if device["live_bytes"] + pieces != used["end"]:
                problems.append(f"{label}: the ledger says {device['live_bytes']} + {pieces}, NVML {used['end']}")
        problems += [f"{label}: {p}" for p in judged(processes, 3, live=figures["left"])]
    return problems


# ---- the machine
# --------------------------------------------------------------------------------------------------


def loaded(name):
    """The file that the loader finds for a library."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        sys.exit(f"cannot open {name}: {error}\ntry: a machine with a GPU, or --device soft")
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "/" in line}
    stem = name.split(".so")[0] + ".so"
    return pathlib.Path(next(p for p in sorted(paths) if pathlib.Path(p).name.startswith(stem)))


def cudart_folders(named):
    """Folders of the runtime library: those given, toolkits, NVIDIA's wheels."""
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-13*"))]
    compiler = shutil.which("nvcc")
    if compiler:
        toolkits.append(pathlib.Path(compiler).resolve().parents[1])
    folders = [pathlib.Path(f) for f in (named.split(",") if named else [])]
    for toolkit in filter(None, toolkits):
        folders += [pathlib.Path(toolkit, "lib64"), pathlib.Path(toolkit, "targets/x86_64-linux/lib")]
    packages = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
    folders += [pathlib.Path(p, "nvidia/cu13/lib") for p in packages]
    return folders


def devices_of(bench):
    """The devices' names."""
    if bench.kind == "soft":
        return ["software device"]
    driver = ctypes.CDLL(str(bench.driver))
    count, name = ctypes.c_int(), ctypes.create_string_buffer(100)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        sys.exit("the driver finds no device")
    names = []
    for ordinal in range(count.value):
        driver.cuDeviceGetName(name, 100, ordinal)
        names.append(name.value.decode())
    return names


def driver_version(bench):
    """The driver's version, or else the CUDA version that it supports."""
    try:
        nvml, text = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(100)
        if not nvml.nvmlInit_v2() and not nvml.nvmlSystemGetDriverVersion(text, 100):
            return text.value.decode()
    except (OSError, AttributeError):
        pass
    version = ctypes.c_int()
    ctypes.CDLL(str(bench.driver)).cuDriverGetVersion(ctypes.byref(version))
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def commit():
    """The commit under test: from the bundle, or from the checkout."""
    written = ROOT.parent / "commit"
    if written.exists():
        return written.read_text().strip()
    ask = lambda *words: subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()
    changed = ask("status", "--porcelain", "--untracked-files=no")
    return ask("rev-parse", "HEAD") + (" and changes" if changed else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fercuda", help="path of fercuda, with its libraries beside it")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", help="run only cases with one of these (comma-separated) in their name")
    parser.add_argument("--record", type=pathlib.Path, help="write docs/conformance-gpu.json to this path")
    parser.add_argument("--device", choices=["gpu", "soft"], default="gpu")
    parser.add_argument("--cudart", help="folders of the runtime library (comma-separated)")
    args = parser.parse_args()
    if args.record and (args.only or args.device == "soft"):
        parser.error("a record is of all cases, on a GPU")
    args.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(args)
    results = {}
    for name, function in CASES.items():
        if args.only and not any(part in name for part in args.only.split(",")):
            continue
        begun = time.monotonic()
        try:
            problems = function(bench)
            result = {"result": "failed" if problems else "passed", "problems": problems}
        except Skipped as why:
            result = {"result": "skipped", "why": str(why)}
        except Failed as why:
            result = {"result": "failed", "problems": [str(why)]}
        result["seconds"] = round(time.monotonic() - begun, 1)
        results[name] = result
        why = f": {result['why']}" if "why" in result else ""
        print(f"{result['result']:8}{name}{why} ({result['seconds']} s)", flush=True)
        for problem in result.get("problems", []):
            print(f"        {problem}", flush=True)
    names = devices_of(bench)
    record = {
        "device": names[0],
        "devices": len(names),
        "driver": driver_version(bench),
        "commit": commit(),
        "seed": bench.seed,
        "cases": results,
    }
    text = json.dumps(record, indent=1) + "\n"
    (bench.out / "conformance.json").write_text(text)
    if args.record:
        args.record.write_text(text)
    counts = {kind: sum(r["result"] == kind for r in results.values()) for kind in ("passed", "failed", "skipped")}
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()), "on", names[0])
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
