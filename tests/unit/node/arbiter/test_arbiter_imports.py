"""The arbiter starts quickly: it is restarted while programs wait for their time windows."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"msgspec", "structlog", "numpy", "sqlalchemy", "h11", "click"}


def test_arbiter_imports_no_package_that_it_does_not_need() -> None:
    code = "import sys, calabash.node.arbiter.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "calabash.node.slots.pages" in loaded.split()
    assert HEAVY.isdisjoint(loaded.split())
