"""The checked kernels of testkit under NVIDIA's compute-sanitizer, beside what the software device finds.

    fercuda-filetest carry FOLDER                       # where NVRTC is
    python3 sanitizer.py FILETEST FOLDER SANITIZER OUT_DIR [--at-once N] [--budget SECONDS] [--only TEXT]

FILETEST and SANITIZER are the programs `fercuda-filetest` and `compute-sanitizer`. Each launch and
program of the list runs bare, then under each tool of the sanitizer, each time in a process of its
own; those that never end, a deadlock, are left out. A tool finds something if it says so at its end.

OUT_DIR gets `sanitizer.json`: for each launch the kinds that the software device finds and the
tools that found something, with their first words. Printed are those where the two disagree:
`missed` if a tool found something where the software device is silent, `more` if the software
device has a finding of a tool's own class that the tool does not have. Exit status 1 if any is
missed.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# The tool that has findings of a kind; of the other kinds no tool has any.
CLASS = {
    "out of bounds": "memcheck",
    "misaligned": "memcheck",
    "use after free": "memcheck",
    "invalid free": "memcheck",
    "illegal address": "memcheck",
    "shared memory race": "racecheck",
    "uninitialised read": "initcheck",
    "barrier divergence": "synccheck",
    "wrong warp mask": "synccheck",
}
LIMIT_S = 40
FOUND = 86


def started(command, environment):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    except subprocess.TimeoutExpired:
        return None, f"did not end in {LIMIT_S} s"
    return done.returncode, done.stdout + done.stderr


def first_words(text):
    """The first lines of a report that say what was found, without addresses."""
    lines = [line.removeprefix("=========").strip() for line in text.splitlines() if line.startswith("=========")]
    said = [line for line in lines if re.match(r"(Invalid|Uninit|Error:|Warning:|Barrier|Potential|Race|Leaked|Program hit)", line)]
    return [re.sub(r"0x[0-9a-f]+", "0x...", line)[:160] for line in said[:2]]


def examined(plan, number):
    one = plan.list[number]
    launch = [plan.filetest, "launch", plan.folder, str(number)]
    status, text = started(launch, plan.environment)
    row = {**one, "bare": status, "error": text.strip()[:200], "tools": {}}
    for tool in TOOLS:
        command = [plan.sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20"]
        status, text = started([*command, *launch], plan.environment)
        summary = re.search(r"(ERROR SUMMARY|RACECHECK SUMMARY): (.*)", text)
        if summary is None:
            row["tools"][tool] = {"failed": f"status {status}: {text.strip()[-200:]}"}
        elif status == FOUND:
            row["tools"][tool] = {"found": summary.group(2), "first": first_words(text)}
        else:
            row["tools"][tool] = {}
    return row


def verdict(row):
    """Where the two disagree: lines, empty if they agree."""
    lines = []
    found = {tool for tool, said in row["tools"].items() if "found" in said}
    if found and not row["finds"]:
        lines += [f"missed: {tool}: {'; '.join(row['tools'][tool]['first'])}" for tool in sorted(found)]
    wanted = {CLASS[kind] for kind in row["finds"] if kind in CLASS}
    lines += [f"more: {', '.join(row['finds'])}: {tool} finds nothing" for tool in sorted(wanted - found)]
    lines += [f"failed: {tool}: {said['failed']}" for tool, said in row["tools"].items() if "failed" in said]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("filetest", "folder", "sanitizer", "out"):
        parser.add_argument(name)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--budget", type=float, default=480, help="no launch begins after as many seconds")
    parser.add_argument("--only", default="", help="those whose file or name has this text")
    plan = parser.parse_args()
    plan.list = json.loads((pathlib.Path(plan.folder) / "list.json").read_text())
    plan.environment = {**os.environ, "FERCUDA_DEVICE": "gpu"}
    begun = time.monotonic()
    wanted = [
        number
        for number, one in enumerate(plan.list)
        if "deadlock" not in one["finds"] and (plan.only in one["file"] or plan.only in one["name"])
    ]

    def row(number):
        return examined(plan, number) if time.monotonic() - begun < plan.budget else None

    with concurrent.futures.ThreadPoolExecutor(plan.at_once) as pool:
        rows = [row for row in pool.map(row, wanted) if row]
    out = pathlib.Path(plan.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "sanitizer.json").write_text(json.dumps(rows, indent=1))
    counts = {"agree": 0, "missed": 0, "more": 0, "failed": 0}
    for row in rows:
        lines = verdict(row)
        for line in lines:
            print(f"{row['folder']}::{row['file']}::{row['name']}: {line}")
        kinds = {line.split(":")[0] for line in lines}
        for kind in kinds or {"agree"}:
            counts[kind] += 1
    beyond = sum(bool(row["finds"]) and not any(kind in CLASS for kind in row["finds"]) for row in rows)
    print(f"{len(rows)} of {len(wanted)} in {time.monotonic() - begun:.0f} s: {counts}; {beyond} of a class that no tool has")
    sys.exit(1 if counts["missed"] else 0)


if __name__ == "__main__":
    main()
