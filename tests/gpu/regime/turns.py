"""Benchmark of one PyTorch training step under several allocators, in processes that alternate on
one GPU.

    python3 turns.py FERCUDA [--groups N] [--at-once N] [--turns N] [--steps N] [--only NAME,...] [--beside FERCUDA] [--json FILE]

Two runs of one program, minutes apart, differ by more than the allocators do: the step is bound by
the host, and host speed varies. So a group is one process per allocator, all alive at once, and
each in turn makes a few steps while the others are idle, on the same two processors. The steps of a
turn are compared with steps a fraction of a second away; the order changes with every turn. The
first two steps of a turn are discarded (the device switches between processes), and so is each
process's first turn, in which every allocator still grows. Figures are medians: of a turn's steps,
of a group's turns, of the groups; and the mean of all turns, since rare events show only there.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import judge
import tenants

ASYNC = judge.allocator("backend:cudaMallocAsync")
# Settings of each, and whether `fercuda run` starts it. The first is the baseline for the others;
# the last shows the overhead of being governed without using the pool.
ALLOCATORS = {
    "caching": ({}, False),
    "fercuda run": ({}, True),
    "the driver's pool": (ASYNC, False),
    "caching, preloaded": (judge.allocator("backend:native"), True),
}
LEFT_OUT = 2
# Marks what another build runs.
BESIDE = ", beside"


def worker():
    """Runs as many steps as each input line says, and prints their times in milliseconds."""
    import torch

    _, step = tenants.torch_step(torch)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps([tenants.timed(torch, step)[1] * 1e3 for _ in range(int(line))]), flush=True)


class Rider:
    """A process that runs steps on request."""

    def __init__(self, fercuda, name, processors):
        environment, governed = ALLOCATORS[name.removesuffix(BESIDE)]
        command = [sys.executable, str(pathlib.Path(__file__)), "worker"]
        self.name = name
        self.turns = []
        self.process = subprocess.Popen(
            [fercuda, "run", "--", *command] if governed else command,
            env={**{k: v for k, v in os.environ.items() if k not in ASYNC}, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, processors),
        )

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: ended with status {self.process.wait()} before its turn was over")
        return line

    def ride(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        self.turns.append(statistics.median(json.loads(self.answer())[LEFT_OUT:]))

    def end(self):
        self.process.stdin.close()
        if status := self.process.wait():
            raise SystemExit(f"{self.name}: ended with status {status}")


def cores():
    """One logical processor of each available core."""
    seen = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        seen.setdefault(siblings.read_text() if siblings.exists() else cpu, cpu)
    return list(seen.values())


def ride(riders, turns, steps):
    """Times in milliseconds of each allocator of a group, by turn, without the first."""
    for turn in range(turns + 1):
        first = turn % len(riders)
        for rider in riders[first:] + riders[:first]:
            rider.ride(steps)
    for rider in riders:
        rider.end()
    return {rider.name: rider.turns[1:] for rider in riders}


def ratio(turns, name, to):
    return statistics.median(a / b for a, b in zip(turns[name], turns[to]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fercuda", help="path of fercuda, with its libraries beside it")
    parser.add_argument("--groups", type=int, default=5, help="how many groups of processes to run (5)")
    parser.add_argument("--at-once", type=int, default=4, help="groups that are alive at once (4)")
    parser.add_argument("--turns", type=int, default=30, help="turns per process (30)")
    parser.add_argument("--steps", type=int, default=22, help=f"steps per turn, the first {LEFT_OUT} discarded (22)")
    parser.add_argument("--only", help="besides the baseline, run only allocators with one of these (comma-separated) in their name")
    parser.add_argument("--beside", metavar="FERCUDA", help="path of another build, for the allocators that it governs, in the same groups")
    parser.add_argument("--json", type=pathlib.Path, help="write every turn's times to this file")
    args = parser.parse_args()
    if min(args.groups, args.at_once, args.turns) < 1 or args.steps <= LEFT_OUT:
        parser.error(f"at least one group at once and one turn of more than {LEFT_OUT} steps")
    base, *others = ALLOCATORS
    names = [base] + [n for n in others if not args.only or any(part in n for part in args.only.split(","))]
    if args.beside:
        names += [name + BESIDE for name in names if ALLOCATORS[name][1]]
    groups = []
    usable = cores()
    while len(groups) < args.groups:
        # To start takes longer than all turns, so several groups start together; then one at a time
        # rides.
        begun = range(len(groups), min(len(groups) + args.at_once, args.groups))
        # One processor for the thread that goes forward, one for autograd's; other groups get
        # others while there are.
        places = [{usable[k % len(usable)] for k in (2 * n, 2 * n + 1)} for n in begun]
        build = {name: args.beside if name.endswith(BESIDE) else args.fercuda for name in names}
        waiting = [[Rider(build[name], name, processors) for name in names] for processors in places]
        for rider in (rider for riders in waiting for rider in riders):
            rider.answer()  # that it is ready
        for processors, riders in zip(places, waiting):
            groups.append(ride(riders, args.turns, args.steps))
            figures = ", ".join(f"{name} {statistics.median(turns):.3f}" for name, turns in groups[-1].items())
            print(f"group {len(groups)} of {args.groups}, processors {processors}, ms: {figures}", flush=True)
    mean = {name: statistics.mean(ms for g in groups for ms in g[name]) for name in names}
    if args.beside:
        for name in names:
            if name.endswith(BESIDE):
                own = name.removesuffix(BESIDE)
                each = sorted(ratio(g, own, name) for g in groups)
                figures = " ".join(f"{r:.3f}" for r in each)
                print(f"{own}, of the build beside: median {statistics.median(each):.3f}, "
                      f"means {mean[own] / mean[name]:.3f}: {figures}")
    print("| allocator | step, ms | of caching, median of groups | means | each group |")
    print("|---|---|---|---|---|")
    for name in names:
        step = statistics.median(statistics.median(g[name]) for g in groups)
        each = sorted(ratio(g, name, base) for g in groups)
        median, of_means = statistics.median(each), mean[name] / mean[base]
        print(f"| {name} | {step:.3f} | {median:.3f} | {of_means:.3f} | {' '.join(f'{r:.3f}' for r in each)} |")
    if args.json:
        args.json.write_text(json.dumps(groups))


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
