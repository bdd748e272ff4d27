"""Tests of the output of ``kubectl calabash``, also for clusters without devices or pods."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.kube_world import World, run

from calabash.adapters.kube.objects.core import EVENT, POD


def test_ps_shows_what_pods_hold_and_that_others_wait(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.pod("waits", waits="it asks for 40GiB")
    world.pod("elsewhere", namespace="team", waits="it asks for 40GiB")
    assert run("ps") == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAMESPACE", "POD", "STATE", "NODE", "GPU", "MODE", "SLICE", "AGE", "REASON"]
    cells = {line.split()[1]: re.split(r"\s{2,}", line) for line in lines}
    assert set(cells) == {"runs", "waits"}
    assert cells["runs"][2:7] == ["Running", "node1", "0", "vgpu", "30% 8GiB"]
    assert cells["waits"][2:7] == ["Pending", "-", "-", "-", "-"]
    assert cells["waits"][-1] == "NoMemory"
    assert run("ps", "-A", "-o", "name") == 0
    assert capsys.readouterr().out.split() == ["runs", "waits", "elsewhere"]
    assert run("ps", "-n", "team", "-o", "name") == 0
    assert capsys.readouterr().out.split() == ["elsewhere"]


def test_smi_shows_every_device_with_what_is_given_of_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("smi") == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", first) == [
        "node1",
        "0",
        "Tesla T4",
        "healthy",
        "vgpu",
        "8GiB/15GiB",
        "30%",
        "default/runs",
    ]
    assert re.split(r"\s{2,}", second)[5:] == ["0MiB/15GiB", "0%", "-"]


def test_smi_says_why_a_node_is_not_ready(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    said = {"type": "Ready", "status": "False", "reason": "no_devices", "message": "no driver\nis loaded"}
    world.set_status({"conditions": [said], "devices": []})
    assert run("smi") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "node node1 is not ready: no_devices: no driver is loaded"


def test_why_says_with_numbers_what_a_pod_waits_for(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.pod("waits", waits="it asks for 40GiB, the largest card has 15GiB; hint: ask for less")
    assert run("why", "waits") == 0
    assert capsys.readouterr().out.splitlines() == [
        "default/waits: Pending (NoMemory)",
        "  it asks for 40GiB, the largest card has 15GiB; hint: ask for less",
    ]
    assert run("why", "waits", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "NoMemory"


def test_why_says_where_a_pod_is_and_what_its_agent_says(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = {"reason": "CreateContainerConfigError", "message": "the card is gone"}
    status = {"containerStatuses": [{"name": "main", "state": {"waiting": waiting}}]}
    world.client.patch(POD, "runs", "default", body={"status": status}, subresource="status")
    assert run("why", "runs") == 0
    assert capsys.readouterr().out.splitlines() == [
        "default/runs: Running",
        "  on node node1, GPU 0: 30% 8GiB",
        "  container main: the card is gone",
    ]


def test_why_says_for_whom_a_pod_goes_that_was_asked_to(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    pod = world.client.get(POD, "runs", "default")
    assert pod is not None
    for reason, said, by in (
        ("Moved", "moved from node1 to node2, to make room for team/large", "calabash-planner"),
        ("Planned", "planned on node1", "calabash-planner"),
        ("Reclaim", "invented", "somebody"),
    ):
        about = {"kind": "Pod", "name": "runs", "namespace": "default", "uid": pod.metadata.uid}
        body: dict[str, Any] = {"metadata": {"name": f"runs.{reason}", "namespace": "default"}, "involvedObject": about}
        body |= {"reason": reason, "message": said, "reportingComponent": by}
        world.client.create(EVENT, body, "default")
    assert run("why", "runs") == 0
    assert "moved from" not in capsys.readouterr().out, "it stays"
    world.client.delete(POD, "runs", "default", grace_s=30)
    assert run("why", "runs") == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  on node node1, GPU 0: 30% 8GiB",
        "  moved from node1 to node2, to make room for team/large",
    ]
    world.may_not("events")
    assert run("why", "runs") == 0
    assert "moved from" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("why", "nobody"), 3),
        (("why", "../secrets"), 2),
        (("ps", "-n", "../x"), 2),
        (("why", "-n", "a/b", "runs"), 2),
        (("why",), 2),
        (("top", "--node", "node7"), 3),
        (("top", "--queue", "nobodys"), 3),
        (("top", "--by", "colour"), 2),
        (("top", "-A", "-n", "team"), 2),
        (("top", "--watch", "-o", "json"), 2),
        (("top", "--interval", "soon"), 2),
        (("queue", "nobodys"), 3),
        (("queue", "../x"), 2),
        (("drain",), 2),
        (("drain", "node7"), 3),
        (("drain", "node7", "--undo"), 3),
        (("drain", "node1/status"), 2),
        (("drain", "node1", "--undo", "--force"), 2),
        (("drain", "node1", "--grace", "-1"), 2),
        (("drain", "node1", "--timeout", "x"), 2),
        (("ps", "-o", "xml"), 2),
        (("nonsense",), 2),
    ],
)
def test_wrong_input_is_one_line_and_a_way_on(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int
) -> None:
    assert run(*words) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    assert re.search(r"^(hint|Try) ?", said.err, re.MULTILINE)


def test_a_cluster_without_calabash_is_told_so(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.client, "serves", lambda kind: False)
    assert run("smi") == 3
    assert capsys.readouterr().err.splitlines()[1].startswith("hint: helm install")


@pytest.mark.parametrize("words", [("top",), ("queue",), ("drain", "node1"), ("drain", "node1", "--undo"), ("ps",)])
def test_every_command_says_where_calabash_is_not_installed(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(world.client, "serves", lambda kind: False)
    assert run(*words) == 3
    assert "hint: helm install" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("top",), ("queue",), ("drain", "node1"), ("ps",), ("smi",), ("why", "runs")])
def test_what_one_may_not_see_is_said_with_who_can_help(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    world.may_not("gpunodes", "pods", "queues")
    assert run(*words) == 4
    said = capsys.readouterr().err.splitlines()
    assert "cannot list resource" in said[0]
    assert said[1].startswith(
        "hint: give a namespace that you may read with -n, or ask an administrator for the ClusterRole view"
    )


@pytest.mark.parametrize("words", [("top",), ("queue",), ("drain", "node1", "--dry-run"), ("ps",)])
def test_a_cluster_that_does_not_answer_is_said_in_one_line(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    world.client.faults.down = True
    assert run(*words) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[1].startswith("hint: check that `kubectl cluster-info` answers")


def test_without_a_way_to_a_cluster_it_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert run("ps", "--kubeconfig", str(tmp_path / "none")) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["error", "hint"]
