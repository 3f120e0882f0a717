"""The page of the API is what the sources say."""

import os
import subprocess
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[1]
PAGE = PYTHON.parent / "docs/python-api.md"


def test_the_page_is_what_sources_and_stubs_say():
    made = subprocess.run([sys.executable, PYTHON / "api_page.py"], capture_output=True, text=True, check=True).stdout
    if os.environ.get("FERCUDA_BLESS") == "1":
        PAGE.write_text(made, encoding="utf-8")
    there = PAGE.read_text(encoding="utf-8")
    assert there == made, "try: python3 python/api_page.py > docs/python-api.md, and read the difference"
    # Every module's names, also those of the compiled part.
    for name in ("### RuntimeSession", "### Buffer", "### LimitError", "### TritonKernel", "### doctor", "### require"):
        assert f"\n{name}\n" in there
