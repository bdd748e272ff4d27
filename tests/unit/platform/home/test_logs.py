"""The pool's log while users cause many lines: its rate per user and its size are limited."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from calabash.platform.home.logs import LINES_MAX, PERIOD_S, RateLimit


def test_a_kind_of_line_of_one_user_is_written_so_often_and_then_counted() -> None:
    now = [0.0]
    limit = RateLimit(clock=lambda: now[0])

    def write(kind: str, uid: int) -> dict[str, Any] | None:
        try:
            return dict(limit(None, "info", {"event": kind, "uid": uid}))
        except structlog.DropEvent:
            return None

    written = [write("granted", 2) for _ in range(LINES_MAX + 300)]
    assert sum(line is not None for line in written) == LINES_MAX
    assert write("granted", 1) is not None, "another user's lines are written"
    assert write("released", 2) is not None, "and lines of another kind"
    now[0] += PERIOD_S
    told = write("granted", 1)
    assert told is not None
    assert told["left_out"].startswith("300 lines in the last 10s: 300 of 'granted' for uid 2")


def test_kinds_without_end_share_one_bound() -> None:
    limit = RateLimit(clock=lambda: 0.0)
    written = 0
    for number in range(10_000):
        try:
            limit(None, "info", {"event": f"kind {number}"})
            written += 1
        except structlog.DropEvent:
            pass
    assert written < 5000
    with pytest.raises(structlog.DropEvent):
        limit(None, "info", {"event": "another kind"})
