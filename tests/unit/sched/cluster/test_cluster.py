"""Tests of the resident arrays: no resource is over-committed, and release is exactly the inverse of place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.model.errors import CalabashError, Reason
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.device_choice import choose_devices
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape, Topology
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.explain.nodes import judge
from calabash.sched.explain.reasons import reasons

ARRAYS = (
    "cpu_free_milli", "memory_free_mib", "gpu_free_milli", "gpu_free_mib", "gpu_users", "gpu_mode", "gpu_sum_milli",
    "gpu_whole_free", "kind_users", "users",
)  # fmt: skip
CARD = GpuSpec(model="H100", memory_mib=81_920, island=0)
MIG_CARD = GpuSpec(model="H100", memory_mib=81_920, mode="mig")
PROFILES = (
    "1g.10gb",
    "1g.20gb",
    "2g.20gb",
    "3g.40gb",
    "4g.40gb",
    "7g.80gb",
    "1g.10gb+me",
    "1c.3g.40gb",
    "2c.7g.80gb",
    "3g.40gb&1g.10gb",
)


def mixed_cluster() -> Cluster:
    """Return nodes with two kinds of shared devices, with MIG devices, and without devices."""
    return Cluster(
        [
            NodeSpec(name="a", cpu_milli=64_000, memory_mib=262_144, gpus=(CARD,) * 4),
            NodeSpec(name="b", cpu_milli=32_000, memory_mib=131_072, gpus=(MIG_CARD,) * 2 + (CARD,) * 2),
            NodeSpec(name="c", cpu_milli=16_000, memory_mib=65_536),
        ]
    )


def counts(compiled: CompiledShape) -> dict[Reason, int]:
    """Return the number of nodes per reason, as an explanation counts them."""
    return {cause.reason: cause.nodes for cause in judge(compiled).causes}


def state_of(cluster: Cluster) -> dict[str, object]:
    """Return copies of all arrays that placements change."""
    return {name: getattr(cluster, name).tolist() for name in ARRAYS} | {"mig": dict(cluster.mig_states)}


shapes = st.one_of(
    st.builds(Shape, cpu_milli=st.integers(0, 40_000), memory_mib=st.integers(0, 150_000)),
    st.builds(
        Shape,
        cpu_milli=st.integers(0, 8000),
        gpu_count=st.integers(1, 3),
        gpu_milli=st.integers(1, WHOLE_MILLI),
        gpu_memory_mib=st.integers(0, 90_000),
        mode=st.sampled_from(["", "vgpu", "mps"]),
    ),
    st.builds(Shape, gpu_count=st.just(1), gpu_memory_mib=st.integers(1, 81_920)),
    st.builds(Shape, gpu_count=st.integers(1, 2), mig_profile=st.sampled_from(PROFILES)),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(shapes, st.integers(0, 5)), max_size=40))
def test_placements_never_over_commit_and_releases_restore_the_arrays(
    requests: list[tuple[Shape, int]],
) -> None:
    cluster = mixed_cluster()
    untouched = state_of(cluster)
    held: list[tuple[Shape, NodePlacement]] = []
    for shape, drop in requests:
        compiled = CompiledShape(cluster, shape)
        for row in np.flatnonzero(compiled.fitting()).tolist():
            placement = choose_devices(compiled, row)
            if placement is not None:
                before = state_of(cluster)
                cluster.place(shape, placement)
                cluster.release(shape, placement)
                assert state_of(cluster) == before
                cluster.place(shape, placement)
                held.append((shape, placement))
                break
        if held and drop == 0:
            cluster.release(*held.pop(len(held) // 2))
        assert (cluster.cpu_free_milli >= 0).all()
        assert (cluster.memory_free_mib >= 0).all()
        assert (cluster.gpu_free_milli >= 0).all()
        assert (cluster.gpu_free_mib >= 0).all()
        assert (cluster.gpu_sum_milli == cluster.gpu_free_milli.sum(axis=1)).all()
        assert (cluster.gpu_whole_free == (cluster.gpu_free_milli == WHOLE_MILLI).sum(axis=1)).all()
        taken_cpu = sum(s.cpu_milli for s, _ in held)
        assert int((cluster.cpu_milli - cluster.cpu_free_milli).sum()) == taken_cpu
    for shape, placement in held:
        cluster.release(shape, placement)
    assert state_of(cluster) == untouched


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(shapes, max_size=25))
def test_shape_fits_by_vectors_exactly_where_it_can_be_placed(requests: list[Shape]) -> None:
    cluster = mixed_cluster()
    for shape in requests:
        compiled = CompiledShape(cluster, shape)
        fitting, codes = compiled.fitting(), reasons(compiled)
        assert ((codes == 0) == fitting).all() or shape.mig_profile
        for row in range(cluster.node_count):
            placement = choose_devices(compiled, row)
            if not fitting[row]:
                assert placement is None
            elif placement is not None:
                cluster.place(shape, placement)
                break


def test_placing_more_than_is_free_is_refused_and_changes_nothing() -> None:
    cluster = mixed_cluster()
    row = cluster.row("a")
    big = Shape(gpu_count=1, gpu_milli=600, gpu_memory_mib=50_000)
    cluster.place(big, NodePlacement(node=row, devices=(0,)))
    before = state_of(cluster)
    for shape, devices in (
        (Shape(gpu_count=1, gpu_milli=500), (0,)),
        (Shape(gpu_count=1, gpu_milli=100, gpu_memory_mib=40_000), (0,)),
        (Shape(gpu_count=2, gpu_milli=100), (1, 1)),
        (Shape(gpu_count=1, gpu_milli=100), (7,)),
        (Shape(cpu_milli=64_001), ()),
    ):
        with pytest.raises(CalabashError) as refused:
            cluster.place(shape, NodePlacement(node=row, devices=devices))
        assert refused.value.reason is Reason.NO_CAPACITY
        assert state_of(cluster) == before


def test_release_of_a_placement_that_was_never_taken_is_refused() -> None:
    cluster = mixed_cluster()
    with pytest.raises(CalabashError, match="never"):
        cluster.release(Shape(gpu_count=1, gpu_milli=100), NodePlacement(node=cluster.row("a"), devices=(0,)))


def test_shared_device_keeps_its_mode_until_its_last_placement_is_released() -> None:
    cluster = mixed_cluster()
    row = cluster.row("a")
    vgpu = Shape(gpu_count=1, gpu_milli=200, mode="vgpu")
    mps = Shape(gpu_count=1, gpu_milli=200, mode="mps")
    on_first = NodePlacement(node=row, devices=(0,))
    cluster.place(vgpu, on_first)
    with pytest.raises(CalabashError, match="sharing mode"):
        cluster.place(mps, on_first)
    cluster.release(vgpu, on_first)
    cluster.place(mps, on_first)
    assert cluster.gpu_users[row, 0] == 1


def test_unhealthy_device_and_cordoned_node_take_no_new_placements() -> None:
    cluster = mixed_cluster()
    compiled = CompiledShape(cluster, Shape(gpu_count=4, gpu_milli=WHOLE_MILLI))
    row = cluster.row("a")
    assert compiled.fitting()[row]
    cluster.set_health(row, 2, healthy=False)
    assert not compiled.fitting().any()
    assert counts(compiled)[Reason.UNHEALTHY] == 1
    cluster.set_health(row, 2, healthy=True)
    cluster.cordon(row)
    assert not compiled.fitting().any()
    cluster.cordon(row, schedulable=True)
    assert compiled.fitting()[row]


def test_change_log_returns_exactly_the_changed_rows_or_none_if_truncated() -> None:
    cluster = mixed_cluster()
    shape, start = Shape(cpu_milli=1), cluster.position
    cluster.place(shape, NodePlacement(node=2))
    assert cluster.changed_since(start) == [2]
    assert cluster.changed_since(cluster.position) == []
    for _ in range(5000):
        cluster.touch(1)
    assert cluster.changed_since(start) is None
    assert len(cluster.log) <= 4096 + 1


def test_two_nodes_of_one_name_are_refused() -> None:
    node = NodeSpec(name="a", cpu_milli=1, memory_mib=1)
    with pytest.raises(CalabashError, match="twice"):
        Cluster([node, node])


def test_an_added_node_takes_the_last_row_and_others_keep_theirs() -> None:
    cluster = mixed_cluster()
    rows = dict(cluster.row_of)
    added = cluster.add_node(NodeSpec(name="d", cpu_milli=8000, memory_mib=1024, gpus=(CARD,)))
    assert added == 3
    assert rows.items() <= cluster.row_of.items()
    assert CompiledShape(cluster, Shape(gpu_count=1, gpu_milli=WHOLE_MILLI)).fitting()[added]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (("zone=east",), {"east"}),
        (("zone!=east",), {"west", "bare"}),
        (("zone in (east, west)",), {"east", "west"}),
        (("zone notin (east)",), {"west", "bare"}),
        (("zone",), {"east", "west"}),
        (("!zone",), {"bare"}),
        (("zone", "zone!=west"), {"east"}),
    ],
)
def test_label_expressions_select_as_kubernetes_does(selector: tuple[str, ...], names: set[str]) -> None:
    cluster = Cluster(
        [
            NodeSpec(name="east", cpu_milli=1, memory_mib=1, labels={"zone": "east"}),
            NodeSpec(name="west", cpu_milli=1, memory_mib=1, labels={"zone": "west"}),
            NodeSpec(name="bare", cpu_milli=1, memory_mib=1),
        ]
    )
    fitting = CompiledShape(cluster, Shape(selector=selector)).fitting()
    assert {cluster.names[row] for row in np.flatnonzero(fitting)} == names


def test_tainted_node_takes_only_requests_that_tolerate_the_taint() -> None:
    cluster = Cluster([NodeSpec(name="a", cpu_milli=1, memory_mib=1, taints=("team=ml:NoSchedule",))])
    assert not CompiledShape(cluster, Shape()).fitting()[0]
    assert counts(CompiledShape(cluster, Shape())) == {Reason.TAINTED: 1}
    for toleration in ("team", "team=ml", "team=ml:NoSchedule", "*"):
        assert CompiledShape(cluster, Shape(tolerations=frozenset((toleration,)))).fitting()[0], toleration


def test_devices_of_one_request_come_from_the_smallest_island_that_suffices() -> None:
    gpus = tuple(GpuSpec(island=island) for island in (0, 0, 0, 0, 1, 1))
    cluster = Cluster([NodeSpec(name="a", cpu_milli=9, memory_mib=9, gpus=gpus)])
    pair = Shape(gpu_count=2, gpu_milli=WHOLE_MILLI, topology=Topology.NVLINK)
    placement = choose_devices(CompiledShape(cluster, pair), 0)
    assert placement is not None
    assert placement.devices == (4, 5)
    strict = Shape(gpu_count=5, gpu_milli=WHOLE_MILLI, topology=Topology.NVLINK, topology_required=True)
    assert not CompiledShape(cluster, strict).fitting()[0]
    assert counts(CompiledShape(cluster, strict)) == {Reason.TOPOLOGY: 1}


@pytest.mark.parametrize(
    "bad",
    [
        {"cpu_milli": -1},
        {"gpu_count": 1},
        {"gpu_milli": 10},
        {"gpu_count": 1, "gpu_milli": 1001},
        {"gpu_count": 1, "gpu_milli": 5, "mig_profile": "1g.10gb"},
        {"selector": ("a b c",)},
    ],
)
def test_inconsistent_shape_is_refused_with_a_hint(bad: dict[str, object]) -> None:
    with pytest.raises(CalabashError) as refused:
        Shape(**bad)  # type: ignore[arg-type]
    assert refused.value.hint
