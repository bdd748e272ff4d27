"""`calabash audit list`: who did what to which object, and the result."""

from __future__ import annotations

import re
from typing import Any

import pytest

from calabash.cli.output import emit
from calabash.cli.tenancy.audit import COLUMNS

LINE: dict[str, Any] = {
    "id": 7, "at": 0.0, "user": "ann", "token": "t1", "origin": "uid 7 pid 8", "tenant": "vision",
    "action": "PUT", "target": "/v1/queues/prod", "outcome": 200, "reason": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "reason", "result"),
    [(200, "", "done"), (201, "", "done"), (403, "not_permitted", "refused: not_permitted"), (404, "", "not found (404)"),
     (500, "", "failed (500)")],
)  # fmt: skip
def test_line_names_action_object_and_result(
    outcome: int, reason: str, result: str, capsys: pytest.CaptureFixture[str]
) -> None:
    emit("AuditList", [LINE | {"outcome": outcome, "reason": reason}], COLUMNS, "table")
    head, line = (re.split(r"\s{2,}", text.strip()) for text in capsys.readouterr().out.splitlines())
    assert head == ["ID", "TIME", "USER", "ACTION", "OBJECT", "TENANT", "RESULT"]
    assert line == ["7", "1970-01-01T00:00:00Z", "ann", "set queue", "prod", "vision", result]


def test_wide_lines_have_origin_and_request(capsys: pytest.CaptureFixture[str]) -> None:
    emit("AuditList", [LINE], COLUMNS, "wide")
    said = capsys.readouterr().out
    assert "uid 7 pid 8" in said
    assert "PUT /v1/queues/prod" in said
