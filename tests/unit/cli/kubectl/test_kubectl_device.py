"""Tests of ``kubectl calabash device``: desired states and orders in the GpuNode's spec, and the printed results."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.cli.kube_world import World, run
from tests.unit.cli.kubectl.test_drain import Time, end

from calabash.adapters.kube.objects.core import POD
from calabash.adapters.kube.objects.resources import GPU_NODE, GpuNodeDeviceSpec
from calabash.cli.kubectl import device as kubectl_device
from calabash.cli.kubectl import drain


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    for module in (drain, kubectl_device):
        monkeypatch.setattr(module, "time", made)
    return made


def wanted(world: World, uuid: str) -> GpuNodeDeviceSpec:
    found = world.client.get(GPU_NODE, "node1")
    assert found is not None
    return found.spec.devices.get(uuid, GpuNodeDeviceSpec())


def answers(world: World, uuid: str, state: str, message: str) -> None:
    """Report the result of the order in the spec, as the agent does."""
    order = wanted(world, uuid).order
    assert order is not None
    outcome = {"id": order.id, "what": order.what, "state": state, "message": message}
    world.set_status({"devices": [{**d, "order": outcome} if d["uuid"] == uuid else d for d in world.devices()]})


def test_a_drained_device_keeps_its_pods_and_another_device_is_not_meant(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("device", "drain", "node1", "0", "--reason", "a new fan") == 0
    assert "no new pods are placed on it until undrain" in capsys.readouterr().out
    assert wanted(world, "GPU-0") == GpuNodeDeviceSpec(drained=True, reason="a new fan")
    assert wanted(world, "GPU-1") == GpuNodeDeviceSpec()
    assert world.client.get(POD, "runs", "default") is not None
    found = world.client.get(GPU_NODE, "node1")
    assert found is not None
    assert not found.spec.unschedulable


def test_evicted_pods_leave_the_device_and_those_on_others_stay(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    other = world.pod("beside", node="node1")
    held = {
        "pod": "default/beside",
        "podUid": other.metadata.uid,
        "container": "main",
        "mode": "vgpu",
        "policy": "fixed",
    }
    first, second = world.devices()
    world.set_status({"devices": [first, {**second, "slices": [{**held, "allocation": "b"}]}]})

    def meanwhile() -> None:
        end(world, "runs")
        if world.client.get(POD, "runs", "default") is None:
            world.set_status({"devices": [{**d, "slices": []} if d["uuid"] == "GPU-0" else d for d in world.devices()]})

    clock.meanwhile = meanwhile
    assert run("device", "drain", "node1", "GPU-0", "--evict") == 0, capsys.readouterr().err
    assert "drained and empty" in capsys.readouterr().out
    assert world.client.get(POD, "runs", "default") is None
    assert world.client.get(POD, "beside", "default") is not None


def test_device_drain_ends_when_another_client_undrains_the_device(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    def lifted() -> None:
        world.client.patch(GPU_NODE, "node1", body={"spec": {"devices": {"GPU-0": None}}})

    clock.meanwhile = lifted
    assert run("device", "drain", "node1", "0", "--evict") != 0
    assert "another client undrained device 0 of node1" in capsys.readouterr().err


def test_who_does_not_leave_in_time_is_named_and_the_device_stays_drained(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("device", "drain", "node1", "0", "--evict", "--timeout", "5s") != 0
    said = capsys.readouterr().err
    assert "default/runs is ending" in said
    assert "kubectl calabash device undrain node1 0" in said
    assert wanted(world, "GPU-0").drained


@pytest.mark.parametrize("verb", ["test", "reset", "undrain"])
def test_an_order_waits_for_the_agents_answer_and_is_new_each_time(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    world.client.patch(GPU_NODE, "node1", body={"spec": {"devices": {"GPU-1": {"drained": True, "reason": "x"}}}})
    clock.meanwhile = lambda: answers(world, "GPU-1", "done", "it is well")
    seen: list[Any] = []
    for _ in range(2):
        assert run("device", verb, "node1", "1") == 0
        assert capsys.readouterr().out == "device 1 of node1: it is well\n"
        order = wanted(world, "GPU-1").order
        assert order is not None
        assert order.what == verb
        seen.append(order.id)
    assert seen[0] != seen[1]
    assert wanted(world, "GPU-1").drained is (verb != "undrain")


def test_an_order_that_fails_says_why_and_one_that_nobody_answers_ends(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.meanwhile = lambda: answers(world, "GPU-0", "failed", "it is used by a1")
    assert run("device", "test", "node1", "0") != 0
    assert "device 0 of node1: it is used by a1" in capsys.readouterr().err
    clock.meanwhile = lambda: answers(world, "GPU-0", "begun", "")
    assert run("device", "test", "node1", "0") != 0
    assert "the agent of node1 has not answered" in capsys.readouterr().err


def test_the_list_shows_state_cause_and_the_last_order(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = world.devices()
    draining = {"health": "unhealthy", "state": "draining", "reason": "drained: a new fan"}
    told = {"id": "1", "what": "test", "state": "failed", "message": "no"}
    world.set_status({"devices": [{**first, **draining}, {**second, "order": told}]})
    assert run("device", "list", "node1", "-o", "wide") == 0
    _, one, two = capsys.readouterr().out.splitlines()
    assert "draining" in one
    assert "drained: a new fan" in one
    assert "test failed: no" in two
    assert run("device", "list", "elsewhere") != 0


@pytest.mark.parametrize("name", ["2", "GPU", "GPU-", "gpu-0"])
def test_a_device_that_is_not_there_is_told_so(world: World, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert run("device", "drain", "node1", name) != 0
    assert "kubectl calabash device list node1" in capsys.readouterr().err


def test_words_that_go_with_evictions_only_are_refused_without(world: World) -> None:
    assert run("device", "drain", "node1", "0", "--force") == 2
    assert wanted(world, "GPU-0") == GpuNodeDeviceSpec()
