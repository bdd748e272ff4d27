"""`calabash top`: totals, order and colours of the view, from a fixed snapshot."""

from __future__ import annotations

import io
from typing import Any

import pytest

from calabash.cli.pool import top

GIB = 1024


def _device(index: int, **fields: Any) -> dict[str, Any]:
    return {
        "index": index, "model": "NVIDIA A100-SXM4-80GB", "health": "healthy", "utilization_percent": 30 + 40 * index,
        "memory_used_mib": 20 * GIB, "memory_mib": 80 * GIB, "core_allocated_percent": 60, "strangers": [],
    } | fields  # fmt: skip


def _allocation(
    identifier: str, tenant: str, device: int, memory_gib: int, core: int, *, state: str = "running"
) -> dict[str, Any]:
    part = {
        "device_index": device, "core_percent": 30, "memory_mib": 40 * GIB, "memory_used_mib": memory_gib * GIB,
        "core_used_percent": core,
    }  # fmt: skip
    return {
        "id": identifier, "tenant": tenant, "state": state, "queue": tenant, "policy": "fixed", "reason": "NoMemory",
        "slices": [part] if state == "running" else [],
        "command": ["python", "train.py", "--data", "/datasets/imagenet/2012/train", "--epochs", "90", "--resume"],
    }  # fmt: skip


DEVICES = [_device(0), _device(1), _device(2, health="failed", utilization_percent=None, memory_used_mib=None)]
ALLOCATIONS = [
    _allocation("a1", "vision", 1, 10, 95),
    _allocation("a2", "speech", 0, 30, 5),
    _allocation("a3", "news", 1, 20, 40),
    _allocation("a4", "news", 0, 0, 0, state="pending"),
]
TOTALS = (
    "3 devices (1 not healthy)   memory 40GiB of 240GiB used",
    "compute 100% of 300% busy, 180% promised   3 programs   1 waiting",
)


def test_wide_terminal_shows_all_in_full_and_the_totals_in_one_line() -> None:
    lines = top.screen(DEVICES, ALLOCATIONS, 200).splitlines()
    assert lines[0] == "   ".join(TOTALS)
    assert max(map(len, lines)) <= 200
    assert not any(line.endswith("…") for line in lines)
    assert sum(line.endswith("--resume") for line in lines) == 4


def test_narrow_terminal_keeps_all_totals_and_numbers_and_cuts_only_commands() -> None:
    lines = top.screen(DEVICES, ALLOCATIONS, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:2] == list(TOTALS)
    (device,) = [line for line in lines if line.split()[:2] == ["1", "A100-SXM4-80GB"]]
    assert device.split()[-3:] == ["20GiB", "80GiB", "60%"]
    (slice_,) = [line for line in lines if line.startswith("a1 ")]
    assert slice_.split()[:4] == ["a1", "vision", "1", "30%"]
    assert slice_.split()[5:8] == ["95%", "40GiB", "10GiB"]
    assert slice_.endswith("…")


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("device", ["a2", "a1", "a3"]),
        ("compute", ["a1", "a3", "a2"]),
        ("memory", ["a2", "a3", "a1"]),
        ("tenant", ["a3", "a2", "a1"]),
    ],
)
def test_slices_are_in_the_chosen_order(sort: str, order: list[str]) -> None:
    lines = top.screen(DEVICES, ALLOCATIONS, sort=sort).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("a1 ", "a2 ", "a3 "))] == order


def test_use_that_is_not_known_is_a_dash_and_not_zero() -> None:
    unknown = [_device(0, utilization_percent=None, memory_used_mib=None)]
    (line,) = top.header(unknown, "0 programs", 0)
    assert "memory - of 80GiB used" in line
    assert "compute - of 100% busy" in line


class Terminal(io.StringIO):
    """A terminal; ``text`` is what was written to it."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, **environment: str) -> str:
    """Return what `show` writes once."""
    sink = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", sink)
    for name, value in {"TERM": "xterm-256color", "NO_COLOR": "", **environment}.items():
        monkeypatch.setenv(name, value)
    top.show(lambda width: top.screen(DEVICES, ALLOCATIONS, width), 0.0)
    return sink.getvalue()


def test_colours_are_on_terminals_only_and_not_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = shown(monkeypatch, terminal=True)
    assert "\x1b[31mfailed\x1b[0m" in coloured
    assert "\x1b[32m" in coloured
    assert "\x1b" not in shown(monkeypatch, terminal=True, NO_COLOR="1")
    assert "\x1b" not in shown(monkeypatch, terminal=True, TERM="dumb")
    assert "\x1b" not in shown(monkeypatch, terminal=False)


def test_view_is_drawn_again_until_ctrl_c_and_gives_the_screen_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, drawn, pauses = Terminal(), iter(["first", "second", "third"]), iter([None, KeyboardInterrupt])

    def pause(seconds: float) -> None:
        if (error := next(pauses)) is not None:
            raise error

    monkeypatch.setattr("sys.stdout", sink)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("time.sleep", pause)
    top.show(lambda width: next(drawn), 1.0)
    text = sink.getvalue()
    assert text.startswith("\x1b[?25l\x1b[?1049h")
    assert text.index("first") < text.index("second")
    assert "third" not in text
    assert text.endswith("\x1b[?1049l\x1b[?25h")
