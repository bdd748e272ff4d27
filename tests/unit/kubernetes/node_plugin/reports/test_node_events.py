"""Tests of the agent's changes of its Node: the startup taint and events."""

from __future__ import annotations

from typing import Any

import pytest

from calabash.adapters.kube.objects.core import EVENT, NODE, KubeEvent
from calabash.kubernetes.node_plugin.reports.node_events import NAMESPACE, NodeEvents
from calabash.kubernetes.node_plugin.reports.taint import AGAIN_S, RETRY_S, StartupTaint
from calabash.kubernetes.objects.names import STARTUP_TAINT
from calabash.model.errors import CalabashError, Reason
from calabash_testing.api_server.client import MemoryKube

OURS = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
THEIRS = {"key": "example.com/theirs", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
FOREIGN = CalabashError("2 of nvidia.com/gpu", reason=Reason.FOREIGN_PLUGIN, hint="keep it off")


def node(client: MemoryKube, *taints: dict[str, Any]) -> None:
    client.create(NODE, {"metadata": {"name": "n1"}, "spec": {"taints": list(taints)}})


def taints(client: MemoryKube) -> list[str]:
    found = client.get(NODE, "n1")
    assert found is not None
    return [taint.key for taint in found.spec.taints]


def events(client: MemoryKube) -> list[KubeEvent]:
    return list(client.list(EVENT, NAMESPACE).items)


def test_the_startup_taint_goes_whatever_its_effect_and_all_others_stay() -> None:
    client = MemoryKube()
    node(client, OURS, THEIRS, {**OURS, "effect": "NoExecute"})
    assert StartupTaint(client, "n1").lift()
    assert taints(client) == ["example.com/theirs"]


def test_a_node_without_it_is_not_written() -> None:
    client = MemoryKube()
    node(client, THEIRS)
    before = client.get(NODE, "n1")
    assert not StartupTaint(client, "n1").lift()
    assert client.get(NODE, "n1") == before


def test_a_node_that_is_not_there_has_no_taint() -> None:
    assert not StartupTaint(MemoryKube(), "n1").lift()


def test_a_node_that_comes_back_tainted_is_freed_again() -> None:
    client = MemoryKube()
    node(client, OURS)
    taint = StartupTaint(client, "n1")
    taint.reconcile(1, 0.0)
    assert taints(client) == []
    client.delete(NODE, "n1")
    node(client, OURS)
    taint.reconcile(1, AGAIN_S - 1)
    assert taints(client) == [STARTUP_TAINT], "the API server is not asked all the time"
    taint.reconcile(2, AGAIN_S - 1)
    assert taints(client) == [], "its kubelet has been registered with anew"
    client.delete(NODE, "n1")
    node(client, OURS)
    taint.reconcile(2, 2 * AGAIN_S)
    assert taints(client) == []


def test_what_failed_is_tried_again_soon() -> None:
    client = MemoryKube()
    node(client, OURS)
    taint = StartupTaint(client, "n1")
    client.faults.down = True
    taint.reconcile(1, 0.0)
    client.faults.down = False
    taint.reconcile(1, RETRY_S / 2)
    assert taints(client) == [STARTUP_TAINT]
    taint.reconcile(1, RETRY_S)
    assert taints(client) == []


def test_an_agent_that_cannot_serve_says_so_once_and_says_when_it_can_again() -> None:
    client = MemoryKube()
    node_events = NodeEvents(client, "n1")
    node_events.report_state(None)
    assert events(client) == []
    for _ in range(3):
        node_events.report_state(FOREIGN)
    (warning,) = events(client)
    assert (warning.type, warning.reason, warning.count) == ("Warning", "ForeignPlugin", 1)
    assert "2 of nvidia.com/gpu; hint: keep it off" in warning.message
    assert (warning.involved_object.kind, warning.involved_object.name) == ("Node", "n1")
    node_events.report_state(None)
    assert {(event.type, event.reason) for event in events(client)} == {
        ("Warning", "ForeignPlugin"),
        ("Normal", "Serving"),
    }


def test_the_same_again_is_counted_and_what_was_forgotten_is_told_anew() -> None:
    client = MemoryKube()
    node_events = NodeEvents(client, "n1")
    for error in (FOREIGN, None, FOREIGN):
        node_events.report_state(error)
    counts = {event.reason: event.count for event in events(client)}
    assert counts == {"ForeignPlugin": 2, "Serving": 1}
    for event in events(client):
        client.delete(EVENT, event.metadata.name, NAMESPACE)
    node_events.report_state(None)
    assert [(event.reason, event.count) for event in events(client)] == [("Serving", 1)]


def test_what_could_not_be_told_is_told_at_the_next_look() -> None:
    client = MemoryKube()
    node_events = NodeEvents(client, "n1")
    client.faults.down = True
    with pytest.raises(CalabashError) as refused:
        node_events.report_state(FOREIGN)
    assert refused.value.reason is Reason.API_DOWN
    client.faults.down = False
    node_events.report_state(FOREIGN)
    assert [event.reason for event in events(client)] == ["ForeignPlugin"]
