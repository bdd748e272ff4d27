"""Pytest plug-in: note in pytest's cache which runs came to their end, for ``tools.repeat``.

A run that is killed, or that pytest ends because of an error of its own, leaves no note: the list of its failed tests is
incomplete.
"""

from __future__ import annotations

import pytest

KEY = "calabash/completed"
_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Add the marker expression of a run whose tests all passed or failed."""
    config = session.config
    cache = getattr(config, "cache", None)  # absent without pytest's own plug-in
    if hasattr(config, "workerinput") or cache is None or exitstatus not in _ENDED:
        return
    cache.set(KEY, [*cache.get(KEY, []), config.option.markexpr])
