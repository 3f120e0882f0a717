"""Rust programs bare and governed: the same lines, and a ledger that has their memory.

    python3 compare.py FERCUDA OUT_DIR PROGRAM...

Each program prints lines `name: result`. NVIDIA's libraries that it links are looked for in
LD_LIBRARY_PATH, in the toolkit and in this Python's packages. OUT_DIR gets `rust-tenants.json`, and
for each program PROGRAM.ledger.json. A program that does not start is a row too. Exit status 1 if
lines differ, a program fails, or a ledger has no allocation or ungoverned memory.
"""

import glob
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import time

LIMIT_S = 120


def libraries():
    """Folders with NVIDIA's libraries on this machine."""
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}
    found = [folder for path in sorted(filter(None, packages)) for folder in sorted(glob.glob(f"{path}/nvidia/*/lib"))]
    return [*found, *sorted(glob.glob("/usr/local/cuda*/lib64"))]


def ran(command, environment):
    begun = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": f"it did not end in {LIMIT_S} s"}
    except OSError as error:
        return {"error": str(error)}
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    answer = {"status": done.returncode, "lines": lines, "seconds": round(time.monotonic() - begun, 2)}
    if done.returncode:
        answer["stderr"] = done.stderr.rstrip().splitlines()[-8:]
    return answer


def governed(path):
    """Allocations, the most bytes and the tenants in a run's ledgers."""
    try:
        processes = json.loads(path.read_text())["processes"]
    except (OSError, ValueError, KeyError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    devices = [device for process in processes for device in process["devices"]]
    return {
        "allocations": sum(device["allocs"] for device in devices),
        "peak_bytes": max((device["peak_bytes"] for device in devices), default=0),
        "ungoverned_bytes": max((device["ungoverned_bytes"] for device in devices), default=0),
        "tenants": sorted({tenant["name"] for process in processes for tenant in process["tenants"]}),
    }


def compared(fercuda, out, program, environment):
    ledger = out / f"{program.name}.ledger.json"
    ledger.unlink(missing_ok=True)
    bare = ran([str(program)], environment)
    under = ran([fercuda, "run", "--json", str(ledger), "--", str(program)], environment)
    row = {"program": program.name, "bare": bare, "governed": under, "ledger": governed(ledger)}
    faults = [f"{kind}: {answer['error']}" for kind, answer in (("bare", bare), ("governed", under)) if "error" in answer]
    if not faults:
        faults += [f"{kind}: status {answer['status']}: {' | '.join(answer.get('stderr', []))}" for kind, answer in (("bare", bare), ("governed", under)) if answer["status"]]
        names = sorted({*bare["lines"], *under["lines"]})
        for name in names:
            pair = bare["lines"].get(name), under["lines"].get(name)
            if pair[0] != pair[1]:
                faults.append(f"{name}: bare {pair[0]!r}, governed {pair[1]!r}")
        if not names:
            faults.append("it printed nothing")
    if not row["ledger"].get("allocations"):
        faults.append(f"no ledger has an allocation: {row['ledger']}")
    if row["ledger"].get("ungoverned_bytes"):
        faults.append(f"{row['ledger']['ungoverned_bytes']} bytes are ungoverned")
    row["faults"] = faults
    return row


def main():
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    fercuda, out = sys.argv[1], pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    search = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *libraries()]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(search)}
    rows = []
    for program in map(pathlib.Path, sys.argv[3:]):
        rows.append(compared(fercuda, out, program, environment))
        row = rows[-1]
        print(f"{'equal' if not row['faults'] else 'DIFFERS':<8} {row['program']}: {row['ledger']}")
        for fault in row["faults"]:
            print(f"    {fault}")
        for name, result in row["governed"].get("lines", {}).items():
            print(f"    {name}: {result}")
        (out / "rust-tenants.json").write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["faults"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
