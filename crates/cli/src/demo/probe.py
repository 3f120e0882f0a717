"""Says which Python this is, and which of the named packages it has; none of them is imported."""

import sys

sys.path[:] = [place for place in sys.path if place]

import importlib.util
import json


def has(name):
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:
        return False


version = ".".join(map(str, sys.version_info[:2]))
print(json.dumps({"executable": sys.executable, "version": version, "has": [name for name in sys.argv[1:] if has(name)]}))
