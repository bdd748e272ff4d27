"""Tests of the rules for grants by device IDs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from calabash.kubernetes.node_plugin.devices.plugins import DeviceIdRules
from calabash.model.errors import CalabashError, Reason


def rules(*, refusal: CalabashError | None = None, claims: bool = False) -> tuple[DeviceIdRules, list[str]]:
    """Return the rules of a node, and the list of the calls after a container was prepared."""

    def require() -> None:
        if refusal is not None:
            raise refusal

    calls: list[str] = []
    gate, watch = SimpleNamespace(require=require), SimpleNamespace(claims=claims)
    return DeviceIdRules(cast("Any", gate), cast("Any", watch), lambda: calls.append("prepared")), calls


def test_grant_by_device_ids_is_refused_while_the_gate_refuses_or_the_devices_are_offered_to_claims() -> None:
    refused = CalabashError("another device plug-in runs", reason=Reason.CONFLICT)
    with pytest.raises(CalabashError, match="another device plug-in runs"):
        rules(refusal=refused, claims=True)[0].require()
    with pytest.raises(CalabashError, match="offered to claims, not by device plug-ins"):
        rules(claims=True)[0].require()
    rules()[0].require()


def test_prepared_container_is_reported() -> None:
    offered, calls = rules()
    offered.prepared()
    assert calls == ["prepared"]
