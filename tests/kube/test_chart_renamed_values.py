"""Tests of former names of the chart's values. The tests need Helm but no cluster."""

from __future__ import annotations

import pytest
from tests.kube import charts
from tests.kube.charts import CHART, Manifest, need_helm, one, render

from calabash.kubernetes.node_plugin.daemon import read_settings
from calabash.kubernetes.node_plugin.settings import AgentSettings
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.node.processes.unmanaged import UnmanagedPolicy

RENAMED = {"strangers": ("unmanagedProcesses", "drain"), "door": ("allocationApi", "claims")}


@pytest.fixture(autouse=True)
def _helm() -> None:
    need_helm()


def settings(agent: Manifest) -> AgentSettings:
    """Return the settings that an agent reads from the arguments in the chart."""
    spec = one(render({"agent": agent}), "DaemonSet", "calabash-agent")["spec"]["template"]["spec"]
    return read_settings(next(c["args"] for c in spec["containers"] if c["name"] == "agent"))


def notes(agent: Manifest) -> str:
    words = ("install", "calabash", str(CHART), "--dry-run=client")
    return charts.helm(*words, values={"agent": agent}).partition("NOTES:")[2]


def test_values_have_the_same_effect_by_former_and_present_names() -> None:
    present = settings({"unmanagedProcesses": "drain", "allocationApi": "claims"})
    assert present.unmanaged_policy is UnmanagedPolicy.DRAIN
    assert present.allocation_api is AllocationApi.CLAIMS
    assert settings({"strangers": "drain", "door": "claims"}) == present
    assert settings({"strangers": "drain", "door": "claims", "unmanagedProcesses": "drain"}) == present
    assert settings({}).unmanaged_policy is UnmanagedPolicy.TELL


@pytest.mark.parametrize("former", RENAMED)
def test_helm_warns_of_a_former_name_only(former: str) -> None:
    name, value = RENAMED[former]
    assert f"WARNING: the value agent.{former} is deprecated; use agent.{name}." in notes({former: value})
    assert "deprecated" not in notes({name: value})


def test_former_and_present_name_with_different_values_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"agent\.unmanagedProcesses is kill, .* hint: remove agent\.strangers"):
        render({"agent": {"unmanagedProcesses": "kill", "strangers": "drain"}})


def test_values_of_a_release_before_the_renaming_are_accepted_as_a_whole() -> None:
    """``helm upgrade --reuse-values`` passes the defaults of the chart that was installed, and not the present ones."""
    found = settings({"strangers": "tell", "door": "claims", "unmanagedProcesses": None, "allocationApi": None})
    assert found.unmanaged_policy is UnmanagedPolicy.TELL
    assert found.allocation_api is AllocationApi.CLAIMS


def test_former_name_with_an_invalid_value_is_refused() -> None:
    with pytest.raises(RuntimeError, match="/agent/strangers"):
        render({"agent": {"strangers": "shout"}})
