"""Pods whose equal values are shared in memory: they are equal to the pods before."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.adapters.kube.world import WAIT_S

from calabash.adapters.kube import Mirror, PodSharing
from calabash.adapters.kube.objects.core import POD, Pod
from calabash_testing.api_server.client import MemoryKube


def pod(number: int, **labels: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"calabash.dev/gpus": "1"}}}
    toleration = {"key": "k", "operator": "Exists"}
    meta = {"name": f"p{number}", "labels": {"job": "j"} | labels}
    return {"metadata": meta, "spec": {"containers": [container], "tolerations": [toleration]}}


def typed(value: dict[str, Any]) -> Pod:
    return msgspec.convert(value, Pod)


words = st.sampled_from(["", "a", "b"])
pairs = st.dictionaries(words, words, max_size=2)
pods = st.builds(
    lambda labels, selector, names, node: typed(
        {
            "metadata": {"name": "p", "labels": labels},
            "spec": {"nodeSelector": selector, "nodeName": node, "containers": [{"name": name} for name in names]},
        }
    ),
    pairs,
    pairs,
    st.lists(words, max_size=3),
    words,
)


@given(st.lists(pods, max_size=8))
def test_what_comes_out_is_equal_to_what_went_in(given_pods: list[Pod]) -> None:
    share = PodSharing()
    assert [share(one) for one in given_pods] == given_pods


def test_equal_parts_of_different_pods_are_one() -> None:
    share = PodSharing()
    first, second = share(typed(pod(1))), share(typed(pod(2)))
    assert first.spec.containers is second.spec.containers
    assert first.spec.tolerations is second.spec.tolerations
    assert first.metadata.labels is second.metadata.labels
    assert first.metadata.name != second.metadata.name


def test_parts_of_different_types_that_read_the_same_are_not_mixed_up() -> None:
    both = typed(
        {"metadata": {"name": "p", "ownerReferences": [{"name": "x"}]}, "spec": {"containers": [{"name": "x"}]}}
    )
    assert PodSharing()(both) == both


def test_the_pool_is_bounded() -> None:
    share = PodSharing()
    for number in range(25_000):
        share(typed(pod(number, unique=str(number))))
    assert len(share._pool) <= 20_000


def test_a_mirror_holds_and_tells_what_is_kept() -> None:
    kube = MemoryKube()
    for number in (1, 2):
        kube.create(POD, pod(number), "ns")
    told: list[Pod | None] = []
    mirror = Mirror(kube, POD, keep=PodSharing(), on_change=lambda change: told.append(change.after))
    mirror.start()
    assert mirror.synced(WAIT_S)
    mirror.stop()
    one, two = mirror.snapshot().values()
    assert one.spec.containers is two.spec.containers
    assert told == [one, two]
