"""What a client knows of its own runs: those whose lease is being given back, told by a lock that the kernel drops."""

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
        held = account.hold(lease)
        program = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[held])
        os.close(held)
        return program

    return begin


def test_a_run_has_ended_when_nobody_holds_it_however_it_went(
    account: RemoteAccount, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    assert account.ended_runs() == set()
    with run("one") as first, run("two") as second:
        assert account.ended_runs() == set()
        first.kill()
        first.wait()
        assert account.ended_runs() == {"one"}
        account.forget_key("one")
        assert account.ended_runs() == set()
        second.communicate()
        assert account.ended_runs() == {"two"}


def test_whoever_comes_next_goes_on_as_soon_as_the_lease_is_given_back(account: RemoteAccount) -> None:
    os.close(account.hold("one"))
    keeper = threading.Timer(0.2, account.forget_key, ["one"])
    keeper.start()
    account.until_returned(account.ended_runs(), within_s=3600)
    assert account.ended_runs() == set()
    keeper.join()


def test_a_lease_that_nobody_gives_back_is_waited_for_once(account: RemoteAccount) -> None:
    os.close(account.hold("one"))
    account.until_returned(account.ended_runs(), within_s=0.1)
    assert account.ended_runs() == set()


def test_a_run_that_has_just_begun_is_not_waited_for(
    account: RemoteAccount, run: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    with run("one") as program:
        account.until_returned({"one"}, within_s=3600)
        program.communicate()
    assert account.ended_runs() == {"one"}
