"""Skipped objects are counted, logged once and reported by one event for each version."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.unit.adapters.kube.world import until

import calabash
from calabash.adapters.kube import KubeError, Mirror, SkippedObject
from calabash.adapters.kube.objects.core import CONFIG_MAP, EVENT, POD, ConfigMap
from calabash.kubernetes.skipped_objects import REASON, SkippedObjects
from calabash.model.errors import Reason
from calabash_testing.api_server.client import MemoryKube
from calabash_testing.api_server.observer import MirrorFailures

SKIPPED = SkippedObject(
    kind=POD, namespace="mallory", name="p", uid="u", resource_version="7", error="Pod mallory/p cannot be read: x"
)


@pytest.fixture
def kube() -> MemoryKube:
    return MemoryKube()


@pytest.fixture
def reports(kube: MemoryKube) -> Iterator[SkippedObjects]:
    made = SkippedObjects("calabash-planner", kube, every_s=0.0)
    made.start()
    yield made
    made.stop()


def test_version_of_an_object_is_counted_and_reported_once(kube: MemoryKube, reports: SkippedObjects) -> None:
    for _ in range(3):
        reports.object_skipped(SKIPPED)
    reports.object_skipped(replace(SKIPPED, resource_version="8"))
    reports.object_skipped(replace(SKIPPED, kind=CONFIG_MAP))
    until(lambda: len(kube.list(EVENT, "mallory").items) == 3)
    assert reports.counts() == {"pods": 2, "configmaps": 1}
    event = next(e for e in kube.list(EVENT, "mallory").items if e.involved_object.kind == "Pod")
    assert (event.type, event.reason, event.involved_object.uid) == ("Warning", REASON, "u")
    assert "cannot be read" in event.message
    assert "hint:" in event.message


def test_failed_watch_is_logged_with_its_kind_and_not_counted(reports: SkippedObjects) -> None:
    failure = KubeError("no answer", status=503, reason=Reason.API_DOWN)
    with capture_logs() as lines:
        reports.mirror_failed(POD, failure)
    assert [(line["log_level"], line["kind"], line["error"]) for line in lines] == [("info", "pods", str(failure))]
    assert reports.counts() == {}


def test_programs_that_skip_the_same_version_write_one_event(kube: MemoryKube, reports: SkippedObjects) -> None:
    other = SkippedObjects("calabash-server", kube, every_s=0.0)
    other.start()
    reports.object_skipped(SKIPPED)
    until(lambda: len(kube.list(EVENT, "mallory").items) == 1)
    other.object_skipped(SKIPPED)
    other.object_skipped(replace(SKIPPED, resource_version="9"))
    until(lambda: len(kube.list(EVENT, "mallory").items) == 2)
    other.stop()


def test_event_that_is_refused_does_not_end_the_reports(kube: MemoryKube, reports: SkippedObjects) -> None:
    kube.faults.down = True
    reports.object_skipped(SKIPPED)
    until(reports._waiting.empty)
    reports.object_skipped(replace(SKIPPED, name=""))
    kube.faults.down = False
    reports.object_skipped(replace(SKIPPED, resource_version="10"))
    until(lambda: any(e.involved_object.uid == "u" for e in kube.list(EVENT, "mallory").items))
    assert reports.counts() == {"pods": 3}


def test_flood_of_skipped_objects_is_bounded(kube: MemoryKube) -> None:
    """No thread takes objects from the queue: it is bounded, and adding to it does not block."""
    reports = SkippedObjects("calabash-planner", kube)
    for number in range(20_000):
        reports.object_skipped(replace(SKIPPED, resource_version=str(number)))
    assert reports._waiting.qsize() <= 1000
    assert len(reports._known) <= 10_000
    assert reports.counts() == {"pods": 20_000}


@pytest.mark.parametrize("fails", ["on_change", "keep"])
def test_object_on_which_a_program_fails_costs_only_itself(kube: MemoryKube, fails: str) -> None:
    """A fault in a callback is a fault of one object: the mirror is in sync and holds the others."""

    def fail(found: object) -> object:
        text = str(found)
        if "poison" in text:
            raise OverflowError("cannot convert float infinity to integer")
        return found

    failures = MirrorFailures()
    skipped, errors = failures.skipped, failures.errors
    for name in ("a", "poison", "z"):
        kube.create(CONFIG_MAP, {"metadata": {"name": name}}, "ns")
    mirror: Mirror[ConfigMap] = Mirror(
        kube,
        CONFIG_MAP,
        observer=failures,
        **{fails: fail},  # type: ignore[arg-type]
    )
    mirror.start()
    try:
        assert mirror.synced(60)
        assert {"a", "z"} <= {name for _, name in mirror.snapshot()}
        kube.patch(CONFIG_MAP, "poison", "ns", body={"data": {"k": "v"}})
        kube.create(CONFIG_MAP, {"metadata": {"name": "after"}}, "ns")
        until(lambda: mirror.get("after", "ns") is not None)
        assert {one.name for one in skipped} == {"poison"}
        assert len(skipped) == 2
        assert all("OverflowError" in one.error for one in skipped)
        assert not any(isinstance(error, KubeError) for error in errors)
        assert mirror.lists == 1
    finally:
        mirror.stop()


def test_every_mirror_of_the_product_reports_what_it_skips() -> None:
    """A mirror without an observer would skip objects without a report."""
    root = Path(calabash.__file__).parent
    silent: list[str] = []
    count = 0
    for path in root.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"Mirror", "WideningMirror"}:
                count += 1
                if not any(keyword.arg == "observer" for keyword in node.keywords):
                    silent.append(f"{path.relative_to(root)}:{node.lineno}")
    assert count >= 15
    assert silent == []
