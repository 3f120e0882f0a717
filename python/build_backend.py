"""PEP 517 backend: maturin's, with the program `fercuda` and its libraries in the wheel.

Cargo builds the program and the libraries that it looks for; they are stripped and staged in
the folder that pyproject.toml names to maturin as the wheel's data: `scripts`, which pip
installs into a venv's `bin`, and `data/lib/fercuda`, into its `lib/fercuda`. Cargo's profile
is the one that maturin is given (`MATURIN_PEP517_ARGS`), so that both share what is compiled.
Where `FERCUDA_WHEEL_PARTS` names a folder with `bin` and `lib/fercuda`, as
`cargo xtask dist` lays it out, its files are taken as they are, and cargo builds the module
alone.

Invariant: the staged files are of this build; a file that is missing fails it.
"""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parent.parent
# Named in pyproject.toml, and found there by maturin.
DATA = ROOT / "target/python/data"
PROGRAM = "fercuda"
LIBRARIES = ("libfercuda_hook.so", "libcuda.so", "libfercuda_guest.so")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    stage(config_settings)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    stage(config_settings)
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit(
        "a source distribution of fercuda_runtime would lack the workspace's other crates\n"
        "try: pip wheel ./python, in a checkout of feRcuda"
    )


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    DATA.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory, config_settings=None):
    DATA.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_editable(metadata_directory, config_settings)


def stage(config_settings):
    """Puts the program and the libraries where maturin finds them, and nothing else."""
    parts = os.environ.get("FERCUDA_WHEEL_PARTS")
    if parts:
        files = {PROGRAM: Path(parts, "bin", PROGRAM)}
        files |= {name: Path(parts, "lib/fercuda", name) for name in LIBRARIES}
        # With a release's own kernels.
        files |= {file.name: file for file in Path(parts, "lib/fercuda").glob("*.ptx")}
    else:
        files = build(maturin.get_maturin_pep517_args(config_settings))
    if DATA.exists():
        shutil.rmtree(DATA)
    for name, built in files.items():
        folder = DATA / ("scripts" if name == PROGRAM else "data/lib/fercuda")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(built, folder / name)
        if not parts:
            # Debug information is nine tenths of it.
            subprocess.run(["strip", "--strip-unneeded", folder / name], check=True)


def build(arguments):
    """Has cargo build them as maturin is going to build the module; where each then lies."""
    known = argparse.ArgumentParser(allow_abbrev=False)
    known.add_argument("--profile", default="release")
    known.add_argument("--target")
    known.add_argument("--locked", action="store_true")
    known.add_argument("--offline", action="store_true")
    known.add_argument("--frozen", action="store_true")
    options, _ = known.parse_known_args(arguments)
    # With the module, the dependencies of which have more features: maturin then finds them built.
    cargo = ["cargo", "build", "--package", "fercuda-cli", "--package", "fercuda-python"]
    cargo += ["--profile", options.profile, "--message-format", "json-render-diagnostics"]
    if options.target:
        cargo += ["--target", options.target]
    cargo += [f"--{flag}" for flag in ("locked", "offline", "frozen") if getattr(options, flag)]
    print("Running `{}`".format(" ".join(cargo)), flush=True)
    made = subprocess.run(cargo, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if made.returncode:
        raise SystemExit(f"cargo failed with exit status {made.returncode}; its errors are above")
    files = {}
    for line in made.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact":
            built = [*message["filenames"], *filter(None, [message["executable"]])]
            files |= {Path(file).name: Path(file) for file in built}
    missing = [name for name in (PROGRAM, *LIBRARIES) if name not in files]
    if missing:
        raise SystemExit(f"cargo built no {', '.join(missing)} of fercuda-cli")
    return {name: files[name] for name in (PROGRAM, *LIBRARIES)}
