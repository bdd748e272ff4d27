"""Tests of the extender's replies to kube-scheduler."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import cast

from structlog.testing import capture_logs

from calabash.kubernetes.planner.serve.extender import Extender, Planning
from calabash.transport.http1 import HttpQuestion


class FailingPlanning:
    """Source of answers that leads and fails."""

    def leads(self) -> bool:
        return True

    def preempt(self, uid: str, offered: list[str]) -> list[str]:
        raise ValueError(f"no answer for {uid} on {len(offered)} nodes")


def test_failed_request_is_logged_and_answered_with_its_error() -> None:
    extender = Extender(cast(Planning, FailingPlanning()), hold_s=1.0)
    body = b'{"Pod": {"metadata": {"uid": "u1"}}, "NodeNameToMetaVictims": {"n1": {}}}'
    with capture_logs() as logs:
        reply = asyncio.run(extender.handle(HttpQuestion(method="POST", path="/preempt", body=body)))
    extender.close()
    assert (reply.status, reply.body) == (HTTPStatus.INTERNAL_SERVER_ERROR, b"no answer for u1 on 1 nodes")
    assert [(entry["event"], entry["path"]) for entry in logs] == [("a request failed", "/preempt")]
