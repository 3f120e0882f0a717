"""Features of frameworks with and without `fercuda run`: a table of features, not of programs.

    python3 features.py FERCUDA OUT_DIR [--only NAME,...] [--budget SECONDS]

Each feature runs bare and governed, each in a process of its own with a time limit. Results and
errors must be equal. Of a feature that measures steps both processes live at once and step by
turns, as the speed of the host varies by more than what is compared: first steps 1 to 22 of a fresh
process, then a steady state. A missing library is a row of the table, and so is a feature that
ended by a signal, ran out of time, or was not reached within the budget.

OUT_DIR gets `features.json` and `features.md`, both written again after each row, and for each
process NAME-KIND.err (its stderr) and NAME.ledger.json. Exit status 1 if anything differs.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time

import features_kit as kit

HERE = pathlib.Path(__file__).resolve()
MODULES = "features_torch,features_others"
KINDS = ("bare", "governed")
# The key of a result that came from a process which did not end well.
ENDED = "end of the process"
# Steps of a fresh process, of which those from the third to the twentieth are compared.
EARLY = 22
TURNS, STEPS = 8, 12
# The first steps of a turn are not counted: the device changes from one process to the other.
LEFT_OUT = 2
LIBRARIES = (
    "torch", "triton", "jax", "jaxlib", "cupy-cuda13x", "cupy-cuda12x", "transformers", "rmm-cu13",
    "rmm-cu12", "numba-cuda", "cuda-core", "cuda-bindings", "numpy",
)


class Child:
    """A process that runs a feature, and what it tells."""

    def __init__(self, plan, name, kind, suffix=""):
        command = [sys.executable, str(HERE), "--feature", name, "--modules", plan.modules]
        self.ledger = plan.out / f"{name}{suffix}.ledger.json"
        if kind == "governed":
            self.ledger.unlink(missing_ok=True)
            command = [plan.fercuda, "run", "--json", str(self.ledger), "--", *command]
        self.errors = plan.out / f"{name}{suffix}-{kind}.err"
        self.messages = queue.Queue()
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=plan.environment, start_new_session=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            word, _, value = line.partition(" ")
            try:
                self.messages.put((word, json.loads(value)))
            except ValueError:
                # What a program printed before its output was taken apart.
                continue
        self.messages.put(("END", None))

    def next(self, until):
        """What it tells next; ("END", None) once it has ended, ("LATE", None) from `until` on."""
        try:
            return self.messages.get(timeout=max(until - time.monotonic(), 0.01))
        except queue.Empty:
            return "LATE", None

    def ask(self, count, until):
        try:
            self.process.stdin.write(f"{count}\n")
            self.process.stdin.flush()
        except OSError:
            pass
        return self.next(until) if count else None

    def result(self, until, heard=None):
        """Its result, whatever has become of it; from then on it does not run."""
        result = None
        if heard is not None and heard[0] != "LATE":
            # It has kept its time; the other may have used up what was left.
            until = max(until, time.monotonic() + 15)
        word, value = heard or self.next(until)
        while word in ("READY", "TURN"):
            self.ask(0, until)
            word, value = self.next(until)
        if word == "RESULT":
            result = value
            word, _ = self.next(until)
        try:
            status = self.process.wait(max(until - time.monotonic(), 1 if word == "LATE" else 10))
        except subprocess.TimeoutExpired:
            status = None
        self.end()
        what = None
        if status is None:
            what = "it did not end in time" if result is None else "it did not exit after its result"
        elif status < 0:
            what = f"it was ended by {signal.Signals(-status).name}"
        elif status:
            what = f"it exited with status {status}"
        if result is None:
            result = {"error": what or "it gave no result"}
        elif what:
            result = result | {ENDED: what}
        return result

    def end(self):
        """Ends it, and the processes that it has started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except (OSError, ValueError):
                pass

    def tail(self, lines=14):
        text = self.errors.read_text(errors="replace").rstrip().splitlines()
        return [line[:240] for line in text[-lines:]]

    def figures(self):
        """What the ledgers of its processes say."""
        try:
            processes = json.loads(self.ledger.read_text())["processes"]
        except (OSError, ValueError, KeyError):
            return None
        devices = [device for process in processes for device in process["devices"]]
        events = {}
        for device in devices:
            for name, count in device.get("event_counts", {}).items():
                events[name] = events.get(name, 0) + count
        return {
            "processes": len(processes),
            "allocations": sum(device["allocs"] for device in devices),
            "ungoverned_bytes": max((device["ungoverned_bytes"] for device in devices), default=0),
            "events": {name: count for name, count in events.items() if count},
        }


class Plan:
    """What to run, how, and the rows so far."""

    def __init__(self, arguments):
        self.fercuda, self.out, self.modules = arguments.fercuda, arguments.out, arguments.modules
        self.begun = time.monotonic()
        self.end = self.begun + arguments.budget
        self.groups = arguments.groups
        self.lock = threading.Lock()
        self.rows = {}
        # JAX would take three quarters of the device, also from what runs beside it.
        self.environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TOKENIZERS_PARALLELISM": "false"}
        self.environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str((self.out / "inductor").resolve()))
        self.environment.setdefault("TRITON_CACHE_DIR", str((self.out / "triton").resolve()))
        self.environment.setdefault("HF_HUB_OFFLINE", "1")
        self.about = about()

    def left(self):
        return self.end - time.monotonic()

    def add(self, row):
        with self.lock:
            self.rows[row["feature"]] = row
            print(line_of(row), flush=True)
            for note in row.get("notes", []):
                print(f"    {note}", flush=True)
            for kind, lines in row.get("stderr", {}).items():
                print("\n".join(f"    {kind} stderr: {line}" for line in lines), flush=True)
            self.write()

    def write(self):
        order = [name for name in kit.FEATURES if name in self.rows]
        rows = [self.rows[name] for name in order]
        whole = {**self.about, "seconds": round(time.monotonic() - self.begun, 1), "rows": rows}
        (self.out / "features.json").write_text(json.dumps(whole, indent=1) + "\n")
        (self.out / "features.md").write_text(table(rows, self.about))


def about():
    """The machine and the versions of libraries, without importing them."""
    import importlib.metadata

    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        machine = subprocess.run(ask, capture_output=True, text=True, timeout=20).stdout.strip().splitlines()
    except (OSError, subprocess.TimeoutExpired):
        machine = []
    return {"machine": machine, "python": sys.version.split()[0], "versions": versions}


def line_of(row):
    figures = ""
    if "step" in row:
        step, early = row["step"], row["early"]
        figures = f"  step {step['bare']:.3f} -> {step['governed']:.3f} ms ({step['ratio']:.3f}), early {early['ratio']:.3f}"
    return f"{row['verdict']:<14} {row['feature']:<34} {row['seconds']:6.1f} s{figures}"


def table(rows, about):
    lines = [
        f"{'; '.join(about['machine']) or 'no GPU'}; Python {about['python']}; "
        + ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
        "",
        "| feature | verdict | step, bare | governed | ratio | steps 3 to 20, ratio | allocations | events |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        step, early = row.get("step"), row.get("early")
        figures = [f"{step['bare']:.3f}", f"{step['governed']:.3f}", f"{step['ratio']:.3f}"] if step else ["", "", ""]
        figures.append(f"{early['ratio']:.3f}" if early else "")
        ledger = row.get("ledger") or {}
        figures.append(str(ledger.get("allocations", "")))
        figures.append(", ".join(f"{name} {count}" for name, count in ledger.get("events", {}).items()))
        verdict = row["verdict"] if row["verdict"] in GOOD else f"**{row['verdict']}**"
        lines.append(f"| {row['feature']} | {verdict} | " + " | ".join(figures) + " |")
    notes = [f"- {row['feature']}: {note}" for row in rows for note in row.get("notes", [])]
    ratios = [row["step"]["ratio"] for row in rows if "step" in row]
    if ratios:
        lines += ["", f"geometric mean of {len(ratios)} steps: {statistics.geometric_mean(ratios):.4f}"]
    return "\n".join([*lines, "", *notes]) + "\n"


GOOD = ("equal", "not installed")


def judged(name, results, children, seconds):
    """The row of a feature: `results` and the children of each kind."""
    row = {"feature": name, "seconds": round(seconds, 1), "result": results["bare"][0]}
    notes = []
    everything = [(kind, result) for kind in KINDS for result in results[kind]]
    first = everything[0][1]
    if all("missing" in result for _, result in everything):
        row["verdict"] = "not installed"
        notes.append(f"there is no {first['missing']}")
    elif all(result == first for _, result in everything):
        is_bad = "error" in first or ENDED in first
        row["verdict"] = "same error" if is_bad else "equal"
        if is_bad:
            notes.append(f"bare and governed: {first.get('error') or first.get(ENDED)}")
    else:
        row["verdict"] = "differs"
        keys = sorted({key for _, result in everything for key in result})
        for key in keys:
            values = {kind: [result.get(key, "-") for result in results[kind]] for kind in KINDS}
            if values["bare"] != values["governed"] or len({json.dumps(it) for it in values["bare"]}) > 1:
                shown = {kind: all[0] if all.count(all[0]) == len(all) else all for kind, all in values.items()}
                notes.append(f"{key}: bare {clipped(shown['bare'])}; governed {clipped(shown['governed'])}")
        row["results"] = results
    if row["verdict"] not in GOOD:
        row["stderr"] = {
            kind: child.tail()
            for kind in (KINDS[:1] if row["verdict"] == "same error" else KINDS)
            for child, result in zip(children[kind], results[kind])
            if "error" in result or ENDED in result
        }
    figures = children["governed"][0].figures()
    if figures is not None:
        row["ledger"] = figures
        if figures["allocations"] == 0 and row["verdict"] == "equal":
            notes.append("no ledger has an allocation: was it governed?")
    elif row["verdict"] not in ("not installed", "same error"):
        notes.append("it left no ledger")
    if notes:
        row["notes"] = notes
    return row


def clipped(value):
    text = json.dumps(value)
    return text if len(text) <= 160 else text[:157] + "..."


def once(plan, name, number):
    """Runs a feature that measures nothing, bare and governed, one after the other."""
    begun = time.monotonic()
    results, children = {}, {}
    for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
        child = Child(plan, name, kind)
        children[kind] = [child]
        limit = min(kit.FEATURES[name].seconds, max(plan.left(), 5))
        results[kind] = [child.result(time.monotonic() + limit)]
    plan.add(judged(name, results, children, time.monotonic() - begun))


def by_turns(plan, name):
    """Runs a feature that measures steps: both processes at once, by turns."""
    begun = time.monotonic()
    results = {kind: [] for kind in KINDS}
    children = {kind: [] for kind in KINDS}
    ratios = {"step": [], "early": []}
    times = {figure: {kind: [] for kind in KINDS} for figure in ratios}
    for group in range(plan.groups):
        # A second group where there is time for it.
        if group and (plan.left() < 0.35 * (plan.end - plan.begun) or "error" in results["bare"][0]):
            break
        until = time.monotonic() + min(kit.FEATURES[name].seconds, max(plan.left(), 5))
        both = {kind: Child(plan, name, kind, f"-{group}" if group else "") for kind in KINDS}
        heard = {kind: child.next(until) for kind, child in both.items()}
        turns = {kind: [] for kind in KINDS}
        if all(word == "READY" for word, _ in heard.values()):
            for turn in range(1 + TURNS):
                for kind in KINDS if (turn + group) % 2 == 0 else KINDS[::-1]:
                    heard[kind] = both[kind].ask(EARLY if turn == 0 else STEPS, until)
                    if heard[kind][0] == "TURN":
                        turns[kind].append(heard[kind][1])
                if any(word != "TURN" for word, _ in heard.values()):
                    break
        for kind, child in both.items():
            results[kind].append(child.result(until, heard[kind]))
            children[kind].append(child)
        if all(len(them) == 1 + TURNS for them in turns.values()):
            steady = {kind: statistics.median(statistics.median(t[LEFT_OUT:]) for t in them[1:]) for kind, them in turns.items()}
            early = {kind: statistics.mean(them[0][2:20]) for kind, them in turns.items()}
            for figure, value in (("step", steady), ("early", early)):
                ratios[figure].append(value["governed"] / value["bare"])
                for kind in KINDS:
                    times[figure][kind].append(value[kind])
    row = judged(name, results, children, time.monotonic() - begun)
    for figure, them in ratios.items():
        if them:
            row[figure] = {kind: round(statistics.median(times[figure][kind]), 4) for kind in KINDS}
            row[figure] |= {"ratio": round(statistics.median(them), 4), "groups": [round(it, 4) for it in them]}
    plan.add(row)


def not_run(plan, name, why):
    plan.add({"feature": name, "verdict": "not run", "seconds": 0, "result": {}, "notes": [why]})


def guarded(plan, name, run, *more):
    """Runs a feature; whatever goes wrong is its row, and the others follow."""
    if plan.left() < 12:
        return not_run(plan, name, "the budget was used up; try: --only, or a larger --budget")
    try:
        run(plan, name, *more)
    except Exception as error:
        not_run(plan, name, f"this script failed: {type(error).__name__}: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fercuda")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=460, help="seconds for all of it")
    parser.add_argument("--groups", type=int, default=2, help="pairs of processes for each that measures")
    parser.add_argument("--at-once", type=int, default=6, help="features that measure nothing at once")
    parser.add_argument("--modules", default=MODULES)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    kit.load(arguments.modules.split(","))
    names = list(kit.FEATURES)
    if arguments.only:
        names = arguments.only.split(",")
        unknown = [name for name in names if name not in kit.FEATURES]
        if unknown:
            parser.error(f"there is no feature {', '.join(unknown)}; try: {', '.join(kit.FEATURES)}")
    plan = Plan(arguments)
    plan.write()
    of = lambda **wanted: [n for n in names if all(getattr(kit.FEATURES[n], k) == v for k, v in wanted.items())]
    with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
        for number, name in enumerate(of(timed=False, alone=False)):
            pool.submit(guarded, plan, name, once, number)
    for number, name in enumerate(of(timed=False, alone=True)):
        guarded(plan, name, once, number)
    for name in of(timed=True):
        guarded(plan, name, by_turns)
    bad = [row["feature"] for row in plan.rows.values() if row["verdict"] not in GOOD]
    print("\n" + (arguments.out / "features.md").read_text())
    print(f"{len(plan.rows)} features, {len(bad)} to look at: {', '.join(bad) or 'none'}")
    return int(bool(bad))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--feature"]:
        kit.load(sys.argv[sys.argv.index("--modules") + 1].split(","))
        kit.one(sys.argv[2])
    else:
        sys.exit(main())
