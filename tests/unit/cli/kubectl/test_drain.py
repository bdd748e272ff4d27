"""Tests of ``kubectl calabash drain``: cordon, evictions within disruption budgets and grace periods, and progress."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.unit.cli.kube_world import World, asks, run

from calabash.adapters.kube.objects.core import NODE, PDB, POD
from calabash.adapters.kube.objects.resources import GPU_NODE
from calabash.cli.kubectl import drain
from calabash.cli.kubectl.drain import GracePeriod
from calabash.model.errors import CalabashError, Reason


class Time:
    """Clock of the command: each pause advances it and calls ``meanwhile``."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        assert self.now_s < 3600, "it waits for ever"
        self.now_s += pause_s
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(drain, "time", made)
    return made


def cordoned(world: World) -> bool:
    found = world.client.get(GPU_NODE, "node1")
    assert found is not None
    return found.spec.unschedulable


def end(world: World, name: str, namespace: str = "default") -> None:
    """Remove an evicted pod, as its kubelet does; do nothing if it was not evicted."""
    pod = world.client.get(POD, name, namespace)
    if pod is not None and pod.metadata.deletion_timestamp:
        world.client.faults.release(namespace, name)


def give_back(world: World) -> None:
    """Report all devices of the node as free, as the agent does after the pods have ended."""
    world.set_status({"devices": [{**device, "slices": []} for device in world.devices()]})


def test_pods_with_devices_leave_and_others_stay_and_nobody_new_is_given_any(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    world.pod("plain", node="node1", spec={"schedulerName": "default-scheduler"})
    world.pod("elsewhere", node="node2", annotations=asks())
    world.pod("planned", node="node1", annotations=asks())
    world.pod("done", node="node1", annotations=asks(), phase="Succeeded")
    said: list[str] = []

    def meanwhile() -> None:
        said.append(capsys.readouterr().err)
        if clock.now_s == 1.0:
            end(world, "planned")
        elif clock.now_s == 2.0:
            end(world, "runs")
        elif clock.now_s == 2.5:  # the agent has forgotten the pod before it has the devices back
            first, second = world.devices()
            world.set_status({"devices": [{**first, "slices": [{**first["slices"][0], "podUid": ""}]}, second]})
        elif clock.now_s == 3.0:
            give_back(world)

    clock.meanwhile = meanwhile
    assert run("drain", "node1") == 0
    assert capsys.readouterr().out == (
        "node1: 2 pods evicted; its devices are free, and are not allocated to pods until --undo\n"
    )
    assert clock.now_s == 3.0
    assert cordoned(world)
    assert {pod.metadata.name for pod in world.client.list(POD).items} == {"plain", "elsewhere", "done"}
    lines = "".join(said).splitlines()
    assert lines[0] == "node1: 2 pods left: default/planned is being evicted; default/runs is being evicted"
    assert lines[1] == "node1: 2 pods left: default/planned is ending (grace 30s); default/runs is ending (grace 30s)"
    assert lines[-1] == "node1: 1 pod left: default/runs has ended, its devices are being released"


def test_a_budget_is_kept_and_named_and_asked_again(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    world.client.patch(POD, "runs", "default", body={"metadata": {"labels": {"app": "web"}}})
    budget = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
    }
    world.client.create(PDB, budget, "default")

    def meanwhile() -> None:
        if clock.now_s == 7.0:
            allowed = {"status": {"disruptionsAllowed": 1}}
            world.client.patch(PDB, "web", "default", body=allowed, subresource="status")
        end(world, "runs")
        if world.client.get(POD, "runs", "default") is None:
            give_back(world)

    clock.meanwhile = meanwhile
    assert run("drain", "node1", "--grace", "2s") == 0
    assert clock.now_s == 10.5, "asked at 0, 5 and 10 s"
    assert (
        "default/runs cannot be evicted now: The disruption budget web allows no disruption now"
        in capsys.readouterr().err
    )


def test_pods_whose_data_would_be_lost_keep_the_node_as_it_is_unless_that_is_meant(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    volumes = [{"name": "token", "projected": {}}, {"name": "scratch", "emptyDir": {"medium": "Memory"}}]
    world.pod("writes", node="node1", annotations=asks(), spec={"volumes": volumes})
    assert run("drain", "node1") != 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "error: the eviction of these pods deletes data in their emptyDir volumes: default/writes"
    assert said[1].startswith("hint: --delete-emptydir-data")
    assert not cordoned(world)

    def meanwhile() -> None:
        for name in ("writes", "runs"):
            end(world, name)
        if clock.now_s == 2.0:
            give_back(world)

    clock.meanwhile = meanwhile
    assert run("drain", "node1", "--delete-emptydir-data") == 0
    assert "2 pods evicted" in capsys.readouterr().out


def test_a_timeout_says_who_is_left_and_leaves_the_cordon(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("drain", "node1", "--timeout", "20s") == 6
    said = capsys.readouterr().err.splitlines()
    assert said[-2] == "error: not empty after 20s; node1: 1 pod left: default/runs is ending (grace 30s)"
    assert said[-1].startswith("hint: it stays cordoned")
    assert cordoned(world)


def test_an_interruption_leaves_the_cordon_and_says_so(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    clock.meanwhile = interrupt
    assert run("drain", "node1") == 130
    said = capsys.readouterr().err.splitlines()
    assert said[-2] == "interrupted; node1 stays cordoned, and evictions that were accepted continue"
    assert "--undo" in said[-1]
    assert cordoned(world)


def test_undo_ends_the_cordon_and_reminds_of_the_one_of_kubernetes(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    world.client.create(NODE, {"metadata": {"name": "node1"}, "spec": {"unschedulable": True}})
    world.client.patch(GPU_NODE, "node1", body={"spec": {"unschedulable": True}})
    assert run("drain", "node1", "--undo") == 0
    assert not cordoned(world)
    said = capsys.readouterr()
    assert said.out == "node1: uncordoned; its devices are allocated to pods again\n"
    assert "kubectl uncordon node1" in said.err


def test_who_would_be_lost_has_to_be_forced_and_nothing_has_changed_before(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    world.pod("lone", node="node1", owner="", annotations=asks())
    assert run("drain", "node1") == 1
    assert "these pods have no controller that recreates them: default/lone" in capsys.readouterr().err
    assert not cordoned(world)

    def meanwhile() -> None:
        end(world, "lone")
        end(world, "runs")
        give_back(world)

    clock.meanwhile = meanwhile
    assert run("drain", "node1", "--force") == 0
    assert world.client.get(POD, "lone", "default") is None


def test_a_drain_that_was_interrupted_goes_on_with_pods_that_leave_already(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    lone = world.pod("lone", node="node1", owner="", annotations=asks())
    for pod in (lone, world.client.get(POD, "runs", "default")):
        assert pod is not None
        world.client.evict("default", pod.metadata.name, pod.metadata.uid)

    def meanwhile() -> None:
        end(world, "lone")
        end(world, "runs")
        give_back(world)

    clock.meanwhile = meanwhile
    assert run("drain", "node1") == 0


def test_a_dry_run_lists_who_would_have_to_leave_and_changes_nothing(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("drain", "node1", "--dry-run") == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAMESPACE", "POD", "OWNER", "GRACE"]
    assert re.split(r"\s{2,}", line) == ["default", "runs", "ReplicaSet/web", "30s"]
    assert not cordoned(world)


def test_drain_stops_when_another_client_lifts_the_cordon(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.meanwhile = lambda: world.client.patch(GPU_NODE, "node1", body={"spec": {"unschedulable": None}})
    assert run("drain", "node1") == 1
    assert "another client uncordoned the devices of node1" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_for_a_while_is_asked_again(
    world: World, clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    def meanwhile() -> None:
        world.client.faults.down = 1.0 <= clock.now_s < 4.0
        if clock.now_s >= 5.0:
            end(world, "runs")
            give_back(world)

    clock.meanwhile = meanwhile
    assert run("drain", "node1") == 0
    assert "the API server is down; retrying" in capsys.readouterr().err


def test_an_empty_node_is_drained_at_once(world: World, clock: Time, capsys: pytest.CaptureFixture[str]) -> None:
    world.client.patch(POD, "runs", "default", body={"status": {"phase": "Failed"}}, subresource="status")
    give_back(world)
    assert run("drain", "node1") == 0
    assert clock.now_s == 0.0
    assert capsys.readouterr().out.startswith("node1: 0 pods evicted")


@pytest.mark.parametrize(
    ("given", "seconds", "said"),
    [
        ("90s", 90, ""),
        ("2m", 120, ""),
        ("0", 0, ""),
        ("30", 30, "warning: --grace 30 without a unit is deprecated; use --grace 30s\n"),
    ],
)
def test_grace_period_has_a_unit_and_a_plain_number_is_read_as_seconds(
    given: str, seconds: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert GracePeriod().convert(given, None, None) == seconds
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("given", ["250ms", "25h", "soon"])
def test_grace_period_must_be_whole_seconds_of_at_most_a_day(given: str) -> None:
    with pytest.raises(CalabashError) as refused:
        GracePeriod().convert(given, None, None)
    assert refused.value.reason is Reason.BAD_REQUEST
