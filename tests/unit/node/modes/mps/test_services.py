"""File of the running MPS daemons of a node."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.node.mps_world import CARD

from calabash.node.modes.mps.services import MpsDaemonFile, RunningDaemon, Services
from calabash.node.modes.protocol import NodeTools


def test_file_of_daemons_is_written_on_change_and_removed_when_empty(tmp_path: Path) -> None:
    file = tmp_path / "mps.json"
    running = [
        RunningDaemon(device=CARD, pid=12, start_time=34),
        RunningDaemon(device=CARD, pid=13, start_time=35, profile="3g.40gb", start=4),
    ]
    daemons = MpsDaemonFile(file)
    daemons.write(lambda: running)
    assert list(MpsDaemonFile(file).read()) == running
    file.unlink()
    daemons.write(lambda: running)
    assert not file.exists()
    daemons.write(lambda: [*running[:1], None])
    assert list(MpsDaemonFile(file).read()) == running[:1]
    daemons.write(list)
    assert not file.exists()


def test_daemon_that_ended_without_a_pool_is_removed_from_the_file_at_adoption(tmp_path: Path) -> None:
    gone = RunningDaemon(device=CARD, pid=os.getpid(), start_time=1)  # another process has that number now
    MpsDaemonFile(tmp_path / "mps.json").write(lambda: [gone])
    Services(cast("NodeTools", SimpleNamespace(home=tmp_path))).adopt()
    assert not (tmp_path / "mps.json").exists()


def test_concurrent_writes_leave_the_latest_daemons_in_the_file(tmp_path: Path) -> None:
    file, numbers = MpsDaemonFile(tmp_path / "mps.json"), iter(range(1, 1000))
    now = [0]

    def running() -> list[RunningDaemon | None]:
        now[0] = next(numbers)
        return [RunningDaemon(device=CARD, pid=now[0], start_time=1)]

    def often() -> None:
        for _ in range(20):
            file.write(running)

    threads = [threading.Thread(target=often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [one.pid for one in MpsDaemonFile(tmp_path / "mps.json").read()] == [now[0]] == [80]


@pytest.mark.parametrize("text", ["", "{", '[{"pid": "x"}]'])
def test_damaged_file_of_daemons_is_treated_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "mps.json").write_text(text)
    assert MpsDaemonFile(tmp_path / "mps.json").read() == ()
    assert MpsDaemonFile(tmp_path / "nowhere.json").read() == ()
