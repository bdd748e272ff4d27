"""``calabash service``: what it writes, runs, and refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from calabash.cli.commands import cli
from calabash.cli.service import command
from calabash.model.errors import CalabashError, Reason


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with a machine that systemd has started; its systemctl writes its words to the file ``called``."""
    (tmp_path / "systemd").mkdir()
    monkeypatch.setattr(command, "SYSTEMD_RUNS", tmp_path / "systemd")
    monkeypatch.setattr(command, "UNIT_FILE", tmp_path / "calabash.service")
    monkeypatch.setattr(command, "root_alone_writes", lambda path: True)
    monkeypatch.setattr("os.geteuid", lambda: 0)

    def run_program(words: list[str], *, timeout_s: float) -> object:
        with (tmp_path / "called").open("a") as called:
            print(*words, file=called)
        shown = "ActiveState=active\nSubState=running\nMainPID=42\nUnitFileState=enabled\n"
        failing = (tmp_path / "fails").exists()
        return type("Done", (), {"returncode": int(failing), "stdout": shown, "stderr": "Job failed.\nmore\n"})()

    monkeypatch.setattr(command, "run_program", run_program)
    return tmp_path


def ran(*words: str) -> Result:
    return CliRunner().invoke(cli, ["service", *words])


def failure(*words: str) -> CalabashError:
    error = ran(*words).exception
    assert isinstance(error, CalabashError), error
    return error


def called(machine: Path) -> list[str]:
    return (machine / "called").read_text().splitlines()


def test_install_writes_the_unit_and_starts_it_and_says_so(machine: Path) -> None:
    done = ran("install", "--console", "off")
    assert done.exit_code == 0, done.output
    unit = (machine / "calabash.service").read_text()
    assert "-I -m calabash.cli.main up --foreground --console off\n" in unit
    commands = ["systemctl daemon-reload", "systemctl enable calabash.service", "systemctl restart calabash.service"]
    assert called(machine) == commands
    assert done.output.splitlines()[:4] == [f"wrote {machine}/calabash.service", *commands]


def test_a_unit_that_is_not_to_be_started_is_enabled_only(machine: Path) -> None:
    assert ran("install", "--no-start").exit_code == 0
    assert called(machine) == ["systemctl daemon-reload", "systemctl enable calabash.service"]


def test_dry_run_prints_the_unit_and_changes_nothing(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    done = ran("install", "--dry-run", "--sim", "lab")
    assert done.exit_code == 0
    assert "up --foreground --sim lab\n" in done.output
    assert sorted(os.listdir(machine)) == ["systemd"]


def test_status_shows_the_state_of_the_service(machine: Path) -> None:
    ran("install")
    done = ran("status")
    assert done.exit_code == 0
    assert "state     active (running)\n" in done.output
    assert "pid       42\n" in done.output


def test_uninstall_stops_the_service_and_removes_its_unit(machine: Path) -> None:
    ran("install")
    done = ran("uninstall")
    assert done.exit_code == 0
    assert not (machine / "calabash.service").exists()
    assert called(machine)[3:] == ["systemctl disable --now calabash.service", "systemctl daemon-reload"]
    assert "/var/lib/calabash is kept" in done.output


def test_a_failed_start_names_the_journal(machine: Path) -> None:
    (machine / "fails").touch()
    error = failure("install")
    assert error.message == "systemctl daemon-reload failed: Job failed."
    assert error.hint == "journalctl -u calabash.service -e"


@pytest.mark.parametrize("word", ["install", "uninstall"])
def test_other_users_than_root_are_refused(machine: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    error = failure(word)
    assert (error.message, error.reason) == ("only root can manage the service", Reason.NOT_PERMITTED)
    assert "sudo" in error.hint


@pytest.mark.parametrize("word", ["install", "uninstall", "status"])
def test_a_machine_without_systemd_is_refused(machine: Path, word: str) -> None:
    (machine / "systemd").rmdir()
    error = failure(word)
    assert error.message == "systemd does not run on this machine"
    assert "calabash up --foreground" in error.hint


def test_an_installation_that_others_can_change_is_refused(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "root_alone_writes", lambda path: False)
    assert "can be changed by other users than root" in failure("install").message
    assert not (machine / "calabash.service").exists()


@pytest.mark.parametrize("word", ["uninstall", "status"])
def test_a_service_that_is_not_installed_is_not_found(machine: Path, word: str) -> None:
    error = failure(word)
    assert error.reason is Reason.NOT_FOUND
    assert "calabash service install" in error.hint
