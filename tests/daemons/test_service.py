"""A pool in the foreground reports its readiness to a service manager when it answers requests."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.daemons.terminal import Terminal


def test_a_pool_reports_its_readiness_when_it_answers(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "h", tmp_path)
    terminal("sim", "create", "lab", "--gpus", "1xT4")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        process = subprocess.Popen(
            [sys.executable, "-m", "calabash.cli.main", "up", "--foreground", "--sim", "lab", "--console", "off"],
            env=terminal.environment | {"NOTIFY_SOCKET": str(tmp_path / "notify")},
        )
        try:
            assert manager.recv(64) == b"READY=1"
            assert terminal.json("status", "-o", "json")["pid"] == process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) in (0, -signal.SIGTERM)
        finally:
            process.kill()
    terminal.close()
