"""Pytest plug-in: a directory of temporary files for each run, through which other users may pass.

Some tests act as other users of the machine, who need to reach files in ``tmp_path``. Pytest's own directory
``/tmp/pytest-of-USER`` does not serve: each start of pytest, also by a test, closes it to other users again.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

_PREFIX = "calabash-t-"  # short, since paths of Unix sockets below it are limited to 107 bytes
_OWN = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the directory; workers of pytest-xdist get directories in it."""
    if hasattr(config, "workerinput") or config.option.basetemp or config.option.collectonly:
        return
    config.stash[_OWN] = Path(tempfile.mkdtemp(prefix=_PREFIX))
    config.option.basetemp = str(config.stash[_OWN])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remove the directory of a run that passed; the files of a failed run stay."""
    own = session.config.stash.get(_OWN, None)
    if own is not None and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        shutil.rmtree(own, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def way_for_other_users(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let other users pass through the directories above each test's own, which stays closed until a test opens it."""
    base = tmp_path_factory.getbasetemp()
    for directory in (base, *base.parents):
        if not directory.name.startswith((_PREFIX, "popen-")):
            break
        directory.chmod(0o711)
