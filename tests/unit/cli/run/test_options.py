"""Tests that ``calabash run`` without the command tree makes the same request as with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.api.requests import AllocationRequest, decode
from calabash.cli.run import help as run_help
from calabash.cli.run import options as run_options
from calabash.cli.run.options import OPTIONS, request, split
from calabash.model.errors import CalabashError

_VALUES = {
    "--gpus": "2",
    "--memory": "8GiB",
    "--spill": "3GiB",
    "--cores": "30%",
    "--mode": "vgpu",
    "--mig": "1g.10gb",
    "--isolation": "hardware",
    "--policy": "burst",
    "--model": "A100",
    "--tenant": "vision",
    "--project": "train",
    "--queue": "prod/serve",
    "--priority": "-3",
    "--gang": "train",
    "--gang-size": "4",
    "--on-fault": "SIGUSR1",
    "--port": "red/a/web1",
    "--time": "1h30m",
    "--wait": "250ms",
}


def of_the_tree(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the request that the command tree makes of the same arguments."""
    made: list[Any] = []
    monkeypatch.setattr(run_help, "start", lambda given, command: made.append(request(given, command)))
    run_help.run.main(args=words, standalone_mode=False)
    return made[0]


@pytest.mark.parametrize(
    "words",
    [
        ["true"],
        ["--", "true"],
        ["--", "--memory", "8"],
        ["-", "x"],
        [word for pair in _VALUES.items() for word in pair] + ["--", "a.out", "--gpus", "9"],
        [f"{flag}={value}" for flag, value in _VALUES.items()] + ["a.out"],
        ["--model", "A100", "--model", "H100", "--gpus", "1", "--gpus", "3", "--", "x"],
    ],
)
def test_both_readers_of_a_command_line_make_the_same_request(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = split(words)
    assert read is not None
    assert request(*read) == of_the_tree(words, monkeypatch)


def test_every_option_has_a_value_that_the_pool_takes() -> None:
    assert set(_VALUES) == {option.flag for option in OPTIONS}
    body = request({flag: [value] for flag, value in _VALUES.items()}, ["true"])
    assert decode(json.dumps(body).encode(), AllocationRequest).run_time_s == 5400
    assert decode(json.dumps(request({}, ["true"])).encode(), AllocationRequest) == AllocationRequest(command=["true"])


@pytest.mark.parametrize(
    "words", [[], ["--"], ["-h"], ["--help", "--", "x"], ["--nonsense", "1", "x"], ["--gpus"], ["-g", "x"]]
)
def test_what_is_not_a_plain_command_line_is_left_to_the_command_tree(words: list[str]) -> None:
    assert split(words) is None


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), min_size=1, max_size=6))
def test_the_words_of_the_program_are_never_read(command: list[str]) -> None:
    assert split(["--", *command]) == ({}, command)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--gpus", "0"),
        ("--gpus", "65"),
        ("--gpus", "٣"),
        ("--gpus", "1" * 5000),
        ("--priority", "--3"),
        ("--gang-size", "0"),
        ("--policy", "maybe"),
        ("--memory", "8"),
        ("--cores", "1" * 5000),
        ("--tenant", "a\n"),
        ("--tenant", ""),
        ("--queue", "\udcff"),
        ("--model", "\udcff"),
        ("--mode", "a b"),
        ("--port", "red/a"),
        ("--port", "red//web1"),
        ("--port", "red/a/\udcff"),
    ],
)
def test_a_value_that_makes_no_sense_is_named_with_a_hint(flag: str, value: str) -> None:
    with pytest.raises(CalabashError) as caught:
        request({flag: [value]}, ["true"])
    assert caught.value.hint


def test_the_pool_is_shown_a_command_line_that_is_text_and_not_longer_than_anybody_reads() -> None:
    body = request({}, ["echo", "\udcff", "x" * 100_000, "never shown"])
    assert body["command"][:2] == ["echo", "\ufffd"]
    assert sum(map(len, body["command"])) <= 4097
    assert len(json.dumps(body)) < 64 * 1024
    assert len(request({}, ["x"] * 1_000_000)["command"]) <= 4096


def test_run_imports_nothing_slow_on_its_way_to_the_pool(tmp_path: Path) -> None:
    probe = (
        "import sys\nfrom calabash.cli.main import main\n"
        "try:\n    main(['run', '--memory', '8GiB', '--wait', '1s', '--', 'true'])\nexcept SystemExit:\n    pass\n"
        "slow = {'click', 'rich', 'msgspec', 'http.client', 'email', 'ssl', 'inspect', 'dataclasses', 'typing', 'pathlib',\n"
        "        'subprocess', 'asyncio', 'urllib.parse', 'contextlib', 'logging', 'tempfile'}\n"
        "print('slow:', sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(Path(run_options.__file__).parents[3])!r})\n{probe}",
        ],
        env={"CALABASH_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "slow: []\n"
    assert "no pool answers" in done.stderr
