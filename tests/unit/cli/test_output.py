"""Tests of the formats of output and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import yaml

from calabash.adapters.pool.entering import environment_with
from calabash.cli import output
from calabash.cli.failure import EXIT_CODES, exit_code, report
from calabash.cli.output import Column
from calabash.cli.pool.doctor import membership
from calabash.cli.pool.top import bar, screen
from calabash.cli.pool.view import unmanaged_lines
from calabash.model.errors import CalabashError, Reason

ROWS = [{"id": "a1", "n": 3}, {"id": "longer", "n": 12}]
COLUMNS = (
    Column(title="ID", text=lambda r: r["id"]),
    Column(title="N", text=lambda r: str(r["n"]), right=True),
    Column(title="MORE", text=lambda r: "x", wide=True),
)


def test_a_table_is_aligned_and_has_no_trailing_blanks() -> None:
    assert output.table(COLUMNS[:2], ROWS) == "ID       N\na1       3\nlonger  12"


def test_a_cell_cannot_break_its_line_or_send_control_characters() -> None:
    rows = [{"id": "a\nb\t c", "n": 1}, {"id": "\x1b[31mred\x07", "n": 2}]
    assert output.table(COLUMNS[:2], rows).splitlines() == ["ID         N", "a b c      1", "?[31mred?  2"]


def test_a_terminal_cuts_lines_at_its_width_and_a_pipe_cuts_nothing() -> None:
    command = ["python", "train.py", "--data", "/a/long/path/to/some/place"]
    slices = [{"device_index": 0, "core_percent": 30, "memory_mib": 8192}]
    rows = [{"id": "a1", "tenant": "vision", "state": "running", "slices": slices, "command": command}]
    assert " ".join(command) in screen([], rows)
    assert " ".join(command) in screen([], rows, 200)
    narrow = screen([], rows, 60).splitlines()
    assert max(map(len, narrow)) == 60
    assert narrow[-1].endswith("…")


def test_wide_shows_more_columns_than_table(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit("RowList", ROWS, COLUMNS, "table")
    assert "MORE" not in capsys.readouterr().out
    output.emit("RowList", ROWS, COLUMNS, "wide")
    assert "MORE" in capsys.readouterr().out


def test_json_and_yaml_carry_the_same_versioned_object(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit("RowList", ROWS, COLUMNS, "json")
    as_json = json.loads(capsys.readouterr().out)
    output.emit("RowList", ROWS, COLUMNS, "yaml")
    assert yaml.safe_load(capsys.readouterr().out) == as_json
    assert as_json == {"apiVersion": "calabash.dev/v1", "kind": "RowList", "items": ROWS}


def test_names_are_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit("RowList", ROWS, COLUMNS, "name")
    assert capsys.readouterr().out == "a1\nlonger\n"


def test_an_error_prints_its_message_then_its_hint_and_keeps_stdout_clean(capsys: pytest.CaptureFixture[str]) -> None:
    code = report(CalabashError("gpu 9 of 4", reason=Reason.NOT_FOUND, hint="calabash smi"))
    captured = capsys.readouterr()
    assert (code, captured.out, captured.err) == (3, "", "error: gpu 9 of 4\nhint: calabash smi\n")


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_an_exit_code_that_is_not_success(reason: Reason) -> None:
    assert exit_code(reason) in EXIT_CODES.keys() - {0, 130}


def test_every_reason_for_not_placing_a_request_means_would_not_fit() -> None:
    assert {exit_code(r) for r in (Reason.NO_MEMORY, Reason.TOO_LARGE, Reason.GANG_INCOMPLETE)} == {5}


def test_an_error_without_a_code_of_ours_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        report(ZeroDivisionError())


def test_search_paths_are_put_in_front_and_other_names_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/theirs.so")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    made = environment_with(os.environ, {"LD_PRELOAD": "/ours.so", "CUDA_VISIBLE_DEVICES": "GPU-1"})
    assert made["LD_PRELOAD"] == "/ours.so:/theirs.so"
    assert made["CUDA_VISIBLE_DEVICES"] == "GPU-1"


@pytest.mark.parametrize(("percent", "filled"), [(0, 0), (50, 5), (100, 10), (250, 10), (-3, 0)])
def test_a_bar_never_leaves_its_frame(percent: float, filled: int) -> None:
    text = bar(percent)
    assert text.count("█") == filled
    assert text.count("█") + text.count("·") == 10


def test_help_imports_nothing_heavy() -> None:
    probe = (
        "import sys\nfrom calabash.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'rich', 'starlette', 'msgspec', 'numpy', 'scipy', 'yaml', 'sqlalchemy', 'pynvml', 'http.client'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert "heavy: []" in done.stderr
    assert "dashboards" in done.stdout


def test_an_unknown_command_is_wrong_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "calabash.cli.main", "dance"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "error: no such command 'dance'" in done.stderr


def test_doctor_warns_of_a_pool_that_has_to_believe_its_programs() -> None:
    kernel = membership({"membership": "kernel", "serves": "every user"})
    assert (kernel.result, kernel.hint) == ("ok", "")
    assert "every user" in kernel.text
    lease = membership({"membership": "lease", "serves": "user ada only"})
    assert lease.result == "warn"
    assert "user ada only" in lease.text
    assert "root" in lease.hint


def _device(index: int, *held: tuple[int, int]) -> dict[str, Any]:
    return {
        "index": index,
        "model": "A100",
        "health": "healthy",
        "memory_used_mib": 0,
        "memory_mib": 40_960,
        "core_allocated_percent": 0,
        "strangers": [{"pid": pid, "memory_mib": mib} for pid, mib in held],
    }


def test_every_device_with_unmanaged_processes_has_a_line_with_their_number_and_memory() -> None:
    devices = [_device(0), _device(1, (7, 1024)), _device(2, *((pid, 512) for pid in range(10, 16)))]
    lines = unmanaged_lines(devices)
    assert lines == [
        "GPU 1: 1 process without a slice, 1GiB (pid 7)",
        "GPU 2: 6 processes without a slice, 3GiB (pid 10, 11, 12, 13, …)",
    ]
    assert all(line in screen(devices, []) for line in lines)
    assert max(map(len, screen(devices, [], 40).splitlines())) == 40
