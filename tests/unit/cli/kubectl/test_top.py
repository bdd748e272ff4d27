"""Tests of ``kubectl calabash top``: allocated and used amounts, with filters and groups."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.unit.cli.kube_world import World, asks, run

from calabash.adapters.kube.objects.resources import GPU_NODE
from calabash.cli.kubectl import top as kubectl_top
from calabash.cli.kubectl.top import Chosen
from calabash.model.errors import CalabashError, Reason


def use(world: World, mib: int = 4096, percent: int = 27) -> None:
    """Report the use of the only slice, as the agent does."""
    first, second = world.devices()
    told = {"memoryUsedMib": mib, "coreUsedPercent": percent}
    first |= {"utilizationPercent": 41, "memoryUsedMib": 5000, "slices": [{**first["slices"][0], **told}]}
    world.set_status({"devices": [first, second]})


def tables(text: str) -> list[list[list[str]]]:
    return [[re.split(r"\s{2,}", line.strip()) for line in block.splitlines()] for block in text.strip().split("\n\n")]


def test_it_shows_devices_slices_and_who_waits_with_what_is_used(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    use(world)
    world.pod("waits", waits="no room", annotations=asks(2, memory_mib=8192, core_percent=30))
    assert run("top") == 0
    totals, devices, slices, waiting = tables(capsys.readouterr().out)
    assert totals[0][0] == "2 devices"
    assert totals[0][-2:] == ["1 pod", "1 waiting"]
    assert devices[0] == ["NODE", "GPU", "MODEL", "HEALTH", "BUSY", "USED", "TOTAL", "CORES"]
    assert devices[1] == ["node1", "0", "Tesla T4", "healthy", "████······ 41%", "4.9GiB", "15GiB", "30%"]
    assert devices[2][4:] == ["-", "-", "15GiB", "0%"]
    assert slices[0] == ["NAMESPACE", "POD", "QUEUE", "NODE", "GPU", "SHARE", "SHARE USED", "MEMORY LIMIT", "USED"]
    assert slices[1] == ["default", "runs", "default", "node1", "0", "30%", "███······· 27%", "8GiB", "4GiB"]
    assert waiting[1][:3] == ["default/waits", "default", "2x 30% 8GiB"]
    assert waiting[1][-1] == "NoMemory"


def test_what_no_agent_tells_is_a_dash_and_not_a_zero(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("top") == 0
    *_, slices = tables(capsys.readouterr().out)
    assert slices[1][-3:] == ["-", "8GiB", "-"]


def test_it_shows_a_namespace_a_queue_or_a_node(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.queue("prod")
    world.label("team", "prod")
    world.pod("waits", namespace="team", waits="no room", annotations=asks())

    def shown(*words: str) -> tuple[int, list[str]]:
        assert run("top", *words, "-o", "json") == 0
        body = json.loads(capsys.readouterr().out)
        return len(body["slices"]), [w["pod"] for w in body["waiting"]]

    assert shown() == (1, [])
    assert shown("-n", "team") == (0, ["waits"])
    assert shown("-A") == (1, ["waits"])
    assert shown("--queue", "prod") == (0, ["waits"])
    assert shown("--queue", "default") == (1, [])
    assert shown("-A", "--node", "node1") == (1, [])
    assert run("top", "-A", "-o", "name") == 0
    assert capsys.readouterr().out.split() == ["default/runs"]


@pytest.mark.parametrize(
    ("by", "names"), [("node", ["node1"]), ("namespace", ["default", "team"]), ("queue", ["default", "prod"])]
)
def test_it_sums_by_node_namespace_or_queue(
    world: World, capsys: pytest.CaptureFixture[str], by: str, names: list[str]
) -> None:
    use(world)
    world.label("team", "prod")
    world.pod("waits", namespace="team", waits="no room")
    assert run("top", "-A", "--by", by) == 0
    heading, *lines = tables(capsys.readouterr().out)[0]
    assert heading == [by.upper(), "SLICES", "SHARE", "SHARE USED", "MEMORY LIMIT", "USED", "WAITING"]
    assert [line[0] for line in lines] == names
    assert lines[0][1:6] == ["1", "30%", "27%", "8GiB", "4GiB"]
    assert [line[-1] for line in lines[1:]] == ["1"] * (len(names) - 1)


def test_who_may_not_see_namespaces_sees_the_rest(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.may_not("namespaces")
    assert run("top", "-A") == 0
    assert tables(capsys.readouterr().out)[2][1][2] == "-"


def test_a_cluster_that_stops_answering_is_told_below_what_was_seen_last(world: World) -> None:
    frame = kubectl_top._frames(world.client, Chosen(), "", wide=False)
    before = frame(0)
    world.client.faults.down = True
    assert frame(0) == f"{before}\n\nlast state shown; now: the API server is down"
    world.client.faults.down = False
    assert frame(0) == before
    fresh = kubectl_top._frames(world.client, Chosen(), "", wide=False)
    world.client.faults.down = True
    with pytest.raises(CalabashError) as refused:
        fresh(0)
    assert refused.value.reason is Reason.API_DOWN


def test_watching_draws_until_it_is_interrupted(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, float]] = []
    monkeypatch.setattr(kubectl_top, "show", lambda frame, pause_s: shown.append((frame(60), pause_s)))
    assert run("top", "--watch", "--interval", "2s") == 0
    ((text, pause_s),) = shown
    assert pause_s == 2.0
    assert max(map(len, text.splitlines())) <= 60


def test_a_cordoned_node_and_one_that_is_not_ready_are_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    not_ready: dict[str, Any] = {"type": "Ready", "status": "False", "reason": "no_devices", "message": "no driver"}
    world.set_status({"conditions": [not_ready]})
    world.client.patch(GPU_NODE, "node1", body={"spec": {"unschedulable": True}})
    for command in ("top", "smi"):
        assert run(command) == 0
        said = capsys.readouterr().out
        assert "node node1 is not ready: no_devices: no driver" in said
        assert "node node1 is cordoned: its devices are not allocated to pods" in said
