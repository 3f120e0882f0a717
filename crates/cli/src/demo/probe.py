"""Prints, as JSON, this Python's path, version and which of the named packages it has for CUDA,
without importing any."""

import sys

sys.path[:] = [place for place in sys.path if place]

import importlib.util
import json
import os
import shutil


def folder(name):
    """The folder of a package, without importing it; None if there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return places[0] if places else None


def has(name):
    place = folder(name)
    if place is None:
        return False
    # CPU-only builds have the same names.
    if name == "torch":
        return os.path.exists(os.path.join(place, "lib", "libtorch_cuda.so"))
    if name == "jax":
        return any(map(folder, ("jax_cuda12_plugin", "jax_cuda13_plugin")))
    # Its launchers are compiled from C, and its kernels use torch's memory.
    if name == "triton":
        compilers = (os.environ.get("CC"), "gcc", "clang", "cc")
        return has("torch") and any(shutil.which(compiler) for compiler in compilers if compiler)
    return True


version = ".".join(map(str, sys.version_info[:2]))
print(json.dumps({"executable": sys.executable, "version": version, "has": [name for name in sys.argv[1:] if has(name)]}))
