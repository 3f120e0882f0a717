"""Measures what a repeated call of an op costs on the host.

    python3 calls.py [--seconds S] [--json FILE]

The op is `neg` of 4 elements, whose plan is cached; the time is that of the call alone, which returns
before the kernel has run. The session is synchronised after every 50 calls, out of the clock. In a
round every contestant has as many calls, and the order rotates with every round; the first round is
discarded. "lent": the operand is another library's array, borrowed by DLPack for the call. Every
figure includes the clock's own time, which has a row of its own.

FERCUDA_DEVICE selects the device. On the software device the kernels themselves run on the host's
cores beside the calls.
"""

import argparse
import json
import pathlib
import time

from fercuda_runtime import RuntimeConfig, RuntimeSession, ops

CALLS = 50
clock = time.perf_counter_ns


class Lent:
    """An array of a library that has DLPack and no more."""

    def __init__(self, buffer):
        self.buffer = buffer

    def __dlpack_device__(self):
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **options):
        return self.buffer.__dlpack__(stream=stream, **options)


def contestants(session):
    x, y = session.alloc((4,)), session.alloc((4,))
    x.fill_bytes(0)
    lent, plan = Lent(x), ops.plan("neg", x)
    expression = {"y": y}
    return {
        "nothing: the clock": lambda: None,
        "session.alloc((4,))": lambda: session.alloc((4,)),
        'ops.plan("neg", x)': lambda: ops.plan("neg", x),
        "plan.run(x, out=y)": lambda: plan.run(x, out=y),
        "ops.neg(x, out=y)": lambda: ops.neg(x, out=y),
        "ops.neg(x)": lambda: ops.neg(x),
        "ops.neg(lent, out=y)": lambda: ops.neg(lent, out=y),
        'session.evaluate("y = -x")': lambda: session.evaluate("y = -x", into=expression, x=x),
    }


def measured(session, seconds):
    calls = contestants(session)
    times = {name: [] for name in calls}
    names, turn = list(calls), 0
    end = time.monotonic() + seconds
    while turn < 2 or time.monotonic() < end:
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = calls[name]
            taken = []
            for _ in range(CALLS):
                begin = clock()
                call()
                taken.append(clock() - begin)
            session.synchronize()
            if turn:
                times[name] += taken
        turn += 1
    return {
        name: {
            "median_ns": sorted(taken)[len(taken) // 2],
            "p99_ns": sorted(taken)[len(taken) * 99 // 100],
            "samples": len(taken),
        }
        for name, taken in times.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="duration of all rounds (10)")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    args = parser.parse_args()
    runtime = RuntimeConfig().open()
    with RuntimeSession("calls", runtime=runtime) as session:
        result = {"device": runtime.device_name, "calls": measured(session, args.seconds)}
    print(result["device"])
    print(f"{'calls, microseconds':<32}{'median':>10}{'99 %':>10}{'samples':>10}")
    for name, it in result["calls"].items():
        print(f"  {name:<30}{it['median_ns'] / 1e3:>10.2f}{it['p99_ns'] / 1e3:>10.2f}{it['samples']:>10}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
