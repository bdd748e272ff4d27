"""Detection of ended runs, whose leases are being released, by the lock of their run file."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from calabash.broker.client.account import RemoteAccount


@pytest.fixture
def account(tmp_path: Path) -> RemoteAccount:
    return RemoteAccount(tmp_path / "remote")


@pytest.fixture
def run(account: RemoteAccount) -> Callable[[str], subprocess.Popen[bytes]]:
    def begin(lease: str) -> subprocess.Popen[bytes]:
        held = account.lock_run(lease)
        program = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[held])
        os.close(held)
        return program

    return begin


def test_run_has_ended_when_its_lock_is_free_however_it_ended(
    account: RemoteAccount, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    assert account.ended_runs() == set()
    with run("one") as first, run("two") as second:
        assert account.ended_runs() == set()
        first.kill()
        first.wait()
        assert account.ended_runs() == {"one"}
        account.delete_key("one")
        assert account.ended_runs() == set()
        second.communicate()
        assert account.ended_runs() == {"two"}


def test_next_run_continues_as_soon_as_the_lease_is_released(account: RemoteAccount) -> None:
    os.close(account.lock_run("one"))
    keeper = threading.Timer(0.2, account.delete_key, ["one"])
    keeper.start()
    account.wait_until_released(account.ended_runs(), within_s=3600)
    assert account.ended_runs() == set()
    keeper.join()


def test_unreleased_lease_is_waited_for_only_once(account: RemoteAccount) -> None:
    os.close(account.lock_run("one"))
    account.wait_until_released(account.ended_runs(), within_s=0.1)
    assert account.ended_runs() == set()


def test_live_run_is_not_waited_for(account: RemoteAccount, run: Callable[[str], subprocess.Popen[bytes]]) -> None:
    with run("one") as program:
        account.wait_until_released({"one"}, within_s=3600)
        program.communicate()
    assert account.ended_runs() == {"one"}
