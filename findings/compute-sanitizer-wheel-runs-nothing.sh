#!/usr/bin/env bash
# compute-sanitizer of the wheel nvidia-cuda-sanitizer-api 13.0.85 never runs the program it is given,
# and its exit status can still be 0.
#
# Versions: nvidia-cuda-sanitizer-api 13.0.85. No GPU is needed.
# Expected: the tool of the wheel is that of the toolkit of the same release; the program runs,
#   under --require-cuda-init=no also one that never calls CUDA.
# Seen: the program is not started; the tool says that the "target application terminated before
#   first instrumented API call". With --require-cuda-init=no, which makes that no error, the exit
#   status is 0: a check of nothing passes. On a machine with a GPU (an H200, with PyTorch as the
#   program) the same; the toolkit's own 2025.3.1 works there. Beside it lies a program
#   TreeLauncherSubreaper, which the wheel lacks, and the tool has a message about a subreaper that
#   it could not execute.
# For us: a report of the tool counts only if its summary line is there; `tests/gpu/sanitizer.py`
#   takes a run without one as failed, and wants the toolkit's program.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check nvidia-cuda-sanitizer-api==13.0.85
packages=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
tool=$packages/nvidia/cu13/bin/compute-sanitizer

fail() { echo "changed: $1" >&2; exit 1; }

helpers=$(find "$packages" -name 'TreeLauncherSubreaper*' | wc -l)
echo "files of the wheel named TreeLauncherSubreaper: $helpers"
[ "$helpers" -eq 0 ] || fail "the wheel has the program"

status=0
timeout 60 "$tool" --require-cuda-init=no --tool memcheck touch "$folder/ran" > "$folder/out" 2>&1 || status=$?
cat "$folder/out"
echo "exit status $status; the program ran: $([ -e "$folder/ran" ] && echo yes || echo no)"
[ ! -e "$folder/ran" ] || fail "the program ran"
[ "$status" -eq 0 ] || fail "the exit status is $status"
