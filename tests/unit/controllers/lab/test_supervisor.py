"""State files of the supervisor of a lab."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from calabash.controllers.lab.supervisor import LOCK_FILE, STATE_FILE, DaemonRestarts, read_restarts, supervisor_pid


@pytest.mark.parametrize("content", [b"", b"{", b'{"h1/ovs-vswitchd": 3}', b'{"h1/ovs-vswitchd": {"count": "x"}}'])
def test_unreadable_restart_file_counts_no_restarts(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATE_FILE).write_bytes(content)
    assert read_restarts(tmp_path) == {}


def test_restarts_are_read_by_daemon(tmp_path: Path) -> None:
    assert read_restarts(tmp_path) == {}
    (tmp_path / STATE_FILE).write_text(json.dumps({"central/nb": {"count": 2, "last_s": 7.0, "failure": "no port"}}))
    assert read_restarts(tmp_path) == {"central/nb": DaemonRestarts(count=2, last_s=7.0, failure="no port")}


def test_supervisor_pid_is_the_holder_of_the_lock(tmp_path: Path) -> None:
    assert supervisor_pid(tmp_path) == 0
    (tmp_path / LOCK_FILE).write_text("4711\n")
    assert supervisor_pid(tmp_path) == 0
    with open(tmp_path / LOCK_FILE) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert supervisor_pid(tmp_path) == 4711
