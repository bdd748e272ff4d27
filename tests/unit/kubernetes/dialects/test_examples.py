"""Tests of one pod of each system, as its documentation writes it, and of the resulting request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from calabash.adapters.kube.objects.resources import KubeQueueSpec
from calabash.kubernetes.dialects.pod import pod_of
from calabash.kubernetes.dialects.protocol import DialectSettings
from calabash.kubernetes.dialects.registry import DIALECTS
from calabash.kubernetes.dialects.translate import translate
from calabash.kubernetes.pod_request import GangSource
from calabash.model.request import ComputePolicy, GpuRequest, ModeName, Selector

EXAMPLES = Path(__file__).parents[4] / "examples" / "kube"
BURST, BEST_EFFORT = ComputePolicy.BURST, ComputePolicy.BEST_EFFORT

EXPECTED = {
    "native": ("native", GpuRequest(count=2, memory_mib=10240, core_percent=25)),
    "nvidia": ("nvidia", GpuRequest(count=2)),
    "nvidia-shared": ("nvidia", GpuRequest(mode=ModeName("timeslice"))),
    "hami": (
        "hami",
        GpuRequest(
            memory_mib=3000, core_percent=30, selector=Selector(models=("A100", "V100"), models_excluded=("1080",))
        ),
    ),
    "hami-percentage": ("hami", GpuRequest(count=2, memory_milli=500, policy=BEST_EFFORT)),
    "nvidia-mig": ("nvidia", GpuRequest(mig="1g.10gb")),
    "volcano": ("volcano", GpuRequest(count=2, memory_mib=3000, core_percent=50, queue="batch", gang="ring")),
    "qgpu": ("qgpu", GpuRequest(memory_mib=5120, core_percent=30)),
    "qgpu-two-cards": ("qgpu", GpuRequest(count=2, memory_mib=30720, core_percent=80)),
    "vcuda": ("vcuda", GpuRequest(memory_mib=5120, core_percent=30)),
    "aliyun": ("aliyun", GpuRequest(memory_mib=6144, core_percent=30)),
    "aliyun-four-cards": ("aliyun", GpuRequest(count=4, memory_mib=2048, policy=BEST_EFFORT)),
    "alauda": ("alauda", GpuRequest(memory_mib=8192, core_percent=50)),
    "kai": ("kai", GpuRequest(memory_milli=500, core_percent=50, policy=BURST)),
    "kai-memory": ("kai", GpuRequest(count=2, memory_mib=2000, policy=BEST_EFFORT)),
    "bitfusion": ("bitfusion", GpuRequest(memory_milli=500, core_percent=50, policy=BURST)),
    "bitfusion-memory": ("bitfusion", GpuRequest(memory_mib=7630, policy=BEST_EFFORT)),
}


def example(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / "dialects" / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_the_example_asks_for_exactly_this(name: str) -> None:
    asked = translate(pod_of(example(name)))
    assert asked is not None
    assert (asked.dialect, [part.request for part in asked.containers]) == (EXPECTED[name][0], [EXPECTED[name][1]])


def test_every_example_is_tested_and_every_dialect_has_one() -> None:
    files = {path.stem for path in (EXAMPLES / "dialects").glob("*.yaml")}
    assert files == set(EXPECTED)
    assert {dialect for dialect, _ in EXPECTED.values()} == {dialect.name for dialect in DIALECTS}


def test_the_example_of_volcano_leaves_the_size_of_its_gang_to_the_pod_group() -> None:
    asked = translate(pod_of(example("volcano")))
    assert asked is not None
    assert (asked.gang_source, asked.queue) == (GangSource.VOLCANO, "batch")


@pytest.mark.parametrize(
    ("name", "settings", "memory_mib"),
    [
        ("aliyun", DialectSettings(aliyun_memory_mib=1), 6),
        ("alauda", DialectSettings(alauda_memory_mib=1), 8),
        ("volcano", DialectSettings(volcano_memory_mib=10), 30_000),
    ],
)
def test_a_unit_that_an_administrator_may_choose_is_a_setting(
    name: str, settings: DialectSettings, memory_mib: int
) -> None:
    asked = translate(pod_of(example(name)), settings=settings)
    assert asked is not None
    assert asked.containers[0].request.memory_mib == memory_mib


def templates() -> dict[str, Any]:
    found = {}
    for name in ("slice", "gang", "deployment"):
        tree = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
        found[name] = tree if tree["kind"] == "Pod" else tree["spec"]["template"]
    return found


def test_the_examples_in_our_own_words_ask_for_exactly_this() -> None:
    expected = {
        "slice": GpuRequest(memory_mib=8192, core_percent=30),
        "gang": GpuRequest(gang="training", gang_size=4, run_time_s=7200.0),
        "deployment": GpuRequest(memory_mib=4096, core_percent=20, policy=BURST),
    }
    for name, template in templates().items():
        asked = translate(pod_of(template))
        assert asked is not None
        assert [part.request for part in asked.containers] == [expected[name]]
        assert asked.movable is (name == "deployment")


def test_the_example_of_a_queue_says_what_a_queue_may_say() -> None:
    queue, namespace, _ = yaml.safe_load_all((EXAMPLES / "queue.yaml").read_text())
    spec = msgspec.convert(queue["spec"], KubeQueueSpec)
    assert (spec.deserved, spec.limit, spec.weight) == (4.0, 8.0, 2.0)
    assert set(queue["spec"]) <= set(KubeQueueSpec.__struct_fields__)
    assert namespace["metadata"]["labels"] == {"calabash.dev/queue": queue["metadata"]["name"]}
