"""``kubectl calabash``: what it shows of a cluster, and what it says when there is nothing to show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from calabash.cli import kubectl
from calabash.seams.kube.memory import MemoryKube
from calabash.seams.kube.objects import NAMESPACE, POD
from calabash.seams.kube.resources import GPU_NODE


class World:
    """A cluster of one node with two cards: a pod that holds a slice of one, and one that waits."""

    def __init__(self) -> None:
        self.client = MemoryKube()
        for name in ("default", "team"):
            self.client.create(NAMESPACE, {"metadata": {"name": name}})
        self.pod("runs", node="node1")
        uid = self.client.get(POD, "runs", "default").metadata.uid  # type: ignore[union-attr]
        held = {"pod": "default/runs", "podUid": uid, "container": "main", "mode": "vgpu", "policy": "fixed"}
        card = {"model": "Tesla T4", "memoryMib": 15360, "health": "healthy"}
        devices = [
            {
                "uuid": "GPU-0",
                "index": 0,
                **card,
                "mode": "vgpu",
                "slices": [{**held, "allocation": "a", "memoryMib": 8192, "corePercent": 30}],
            },
            {"uuid": "GPU-1", "index": 1, **card},
        ]
        self.tell({"conditions": [{"type": "Ready", "status": "True"}], "devices": devices})

    def tell(self, status: dict[str, Any]) -> None:
        """What the node's agent tells."""
        if self.client.get(GPU_NODE, "node1") is None:
            self.client.create(GPU_NODE, {"metadata": {"name": "node1"}})
        self.client.patch(GPU_NODE, "node1", body={"status": status}, subresource="status")

    def pod(self, name: str, *, namespace: str = "default", node: str = "", waits: str = "", **status: Any) -> None:
        spec = {"schedulerName": "calabash", "nodeName": node, "containers": [{"name": "main"}]}
        self.client.create(POD, {"metadata": {"name": name, "namespace": namespace}, "spec": spec}, namespace)
        body: dict[str, Any] = {"phase": "Running" if node else "Pending", **status}
        if waits:
            said = {"type": "PodScheduled", "status": "False", "reason": "NoMemory", "message": waits}
            body["conditions"] = [said]
        self.client.patch(POD, name, namespace, body={"status": body}, subresource="status")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(kubectl, "connect", lambda kubeconfig, context: (made.client, "default"))
    return made


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        kubectl.main(list(words))
    return int(ended.value.code or 0)


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
    world.tell({"conditions": [said], "devices": []})
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


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("why", "nobody"), 3),
        (("why", "../secrets"), 2),
        (("ps", "-n", "../x"), 2),
        (("why", "-n", "a/b", "runs"), 2),
        (("why",), 2),
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


def test_without_a_way_to_a_cluster_it_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert run("ps", "--kubeconfig", str(tmp_path / "none")) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["error", "hint"]
