"""A process reports to the service manager that its start is complete, once."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from calabash.adapters.host.service_manager import NOTIFY_SOCKET, report_ready


@pytest.mark.parametrize("abstract", [False, True])
def test_readiness_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address if abstract else address)
        manager.settimeout(5)
        monkeypatch.setenv(NOTIFY_SOCKET, "@" + address if abstract else address)
        report_ready()
        assert manager.recv(64) == b"READY=1"
        report_ready()
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(64)


@pytest.mark.parametrize("address", ["", "vsock:2:1"])
def test_a_process_without_a_service_manager_reports_nothing(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv(NOTIFY_SOCKET, address)
    report_ready()
