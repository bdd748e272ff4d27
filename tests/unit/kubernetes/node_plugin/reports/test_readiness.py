"""Tests of the agent's readiness."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from calabash.kubernetes.node_plugin.devices.plugins import Plugins
from calabash.kubernetes.node_plugin.reports.readiness import STARTING, Readiness
from calabash.model.errors import CalabashError, Reason


def test_agent_is_ready_only_while_all_served_interfaces_are_registered() -> None:
    readiness = Readiness()
    assert readiness.fault() == STARTING
    readiness.serves(["device plug-in", "DRA plug-in"])
    assert readiness.fault() == "not registered by the kubelet: device plug-in, DRA plug-in"
    readiness.serves([])
    assert readiness.fault() == ""


def test_agent_that_refuses_its_journal_is_not_ready_and_the_text_names_no_file() -> None:
    readiness = Readiness()
    readiness.serves([])
    readiness.failed(CalabashError("/var/lib/calabash/agent.db has schema 99", reason=Reason.STORE_NEWER))
    assert readiness.fault() == "the agent cannot serve: store_newer"
    readiness.has_nothing_to_register()
    assert readiness.fault() == ""
    readiness.failed(CalabashError("the driver reports no device", reason=Reason.NO_DEVICES))
    assert readiness.fault() == "the agent cannot serve: no_devices"


@pytest.mark.parametrize(
    ("plugin", "serves", "driver", "missing"),
    [
        (True, False, False, []),
        (False, False, False, ["device plug-in"]),
        (True, True, False, ["DRA plug-in"]),
        (False, True, False, ["device plug-in", "DRA plug-in"]),
        (True, True, True, []),
    ],
)
def test_interface_that_is_served_and_not_registered_is_named(
    plugin: bool, serves: bool, driver: bool, missing: list[str]
) -> None:
    claims = SimpleNamespace(serves=serves, registered=driver)
    plugins = SimpleNamespace(_plugin=SimpleNamespace(registered=plugin), _claims=claims)
    assert Plugins.unregistered(cast("Any", plugins)) == missing
