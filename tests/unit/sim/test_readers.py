"""Trace readers: what is right is read whole, what is wrong is told with file, line and hint; nothing is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from calabash.model.errors import CalabashError, Reason
from calabash.sched.cluster.shape import WHOLE_MILLI
from calabash.sim import generate, openb, trace

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,96000,393216,8,G2\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "p0,12000,16384,1,1000,,LS,Running,0,100,0\n"
    "p1,6000,12288,1,460,V100M16|V100M32,LS,Running,10,40,10\n"
    "p2,8000,30517,0,0,,BE,Running,20,30,20\n"
    "p3,96000,1024,8,1000,,BE,Running,20,30,20\n"
)


def written(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    """A file with this content."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_nodes_and_pods_of_openb_are_read_whole(tmp_path: Path) -> None:
    nodes = openb.read_nodes(written(tmp_path, NODES))
    pods = openb.read_pods(written(tmp_path, PODS))
    assert [(n.name, n.cpu_milli, len(n.gpus)) for n in nodes] == [("n0", 64_000, 2), ("n1", 96_000, 8)]
    shapes = [request.shape for request in pods.requests]
    assert [(s.gpu_count, s.gpu_milli) for s in shapes] == [(1, 1000), (1, 460), (0, 0), (8, 1000)]
    assert shapes[1].models == {"V100M16", "V100M32"}
    assert pods.requests[1].arrives_s == 10
    assert pods.requests[1].runs_s == 30


def test_the_multi_gpu_files_have_no_model_column_and_are_read_all_the_same(tmp_path: Path) -> None:
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1000,1,2,1000\n"
    shape = openb.read_pods(written(tmp_path, text)).requests[0].shape
    assert shape.gpu_total_milli == 2 * WHOLE_MILLI
    assert not shape.models


HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "trace.csv", "empty"),
        (HEAD, ":2", "no pod"),
        ("name,cpu_milli,num_gpu,gpu_milli\np,1,1,1\n", ":1", "memory_mib"),
        (HEAD + "p,1000,1,1,500,\np,1000,1,1,500,\n", ":3", "twice"),
        (HEAD + "p,-1,1,1,500,\n", ":2", "cpu_milli"),
        (HEAD + "p,99999999999,1,1,500,\n", ":2", "out of range"),
        (HEAD + "p,1e3,1,1,500,\n", ":2", "whole number"),
        (HEAD + "p,,1,1,500,\n", ":2", "cpu_milli"),
        (HEAD + "p,1000,1,900,1000,\n", ":2", "num_gpu"),
        (HEAD + "p,1000,1,1,0,\n", ":2", "0 milli"),
        (HEAD + "p,1000,1,2,500,\n", ":2", "500 milli"),
        (HEAD + "p,1000,1,1,1500,\n", ":2", "out of range"),
        (HEAD + "p,1000,1,0,500,\n", ":2", "no device"),
        (HEAD + "p,1000,1,1,500,H900\n", ":2", "H900"),
        (HEAD + "p,1000,1,1\n", ":2", "4 cells"),
        (HEAD + "ok,1000,1,1,500,\np,1000,1,1,500,,extra\n", ":3", "7 cells"),
        (HEAD.encode() + b"p\xff\xfe,1000,1,1,500,\n", "trace.csv", "UTF-8"),
        (HEAD + '"p,1000,1,1,500,\n', "trace.csv", ""),
        ("name,name,cpu_milli,memory_mib,num_gpu,gpu_milli\n", ":1", "twice"),
    ],
)
def test_a_bad_pod_file_is_refused_with_line_and_hint(tmp_path: Path, text: str | bytes, where: str, what: str) -> None:
    with pytest.raises(CalabashError) as refused:
        openb.read_pods(written(tmp_path, text))
    assert where in refused.value.message
    assert what in refused.value.message
    assert refused.value.hint
    assert refused.value.reason is Reason.BAD_FILE


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("sn,cpu_milli,memory_mib,gpu,model\n", "no node"),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,1,\n", "model"),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,65,T4\n", "gpu"),
        (NODES + "n0,1,1,1,T4\n", "n0"),
    ],
)
def test_a_bad_node_file_is_refused(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(CalabashError, match=what):
        openb.read_nodes(written(tmp_path, text))


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(CalabashError) as refused:
        openb.read_pods(tmp_path / "none.csv")
    assert refused.value.reason is Reason.NOT_FOUND


OWN_NODES = (
    "name,cpu_milli,memory_mib,gpu_count,gpu_model,gpu_memory_mib,labels,taints,rack\n"
    "a,64000,262144,8,H100,81920,zone=east|pool=x,team=ml:NoSchedule,r1\n"
)


def test_our_own_format_reads_the_same_from_csv_and_jsonl(tmp_path: Path) -> None:
    nodes = trace.read_nodes(written(tmp_path, OWN_NODES))
    assert nodes[0].gpus[0].memory_mib == 81_920
    assert dict(nodes[0].labels) == {"zone": "east", "pool": "x"}
    as_csv = (
        "name,cpu_milli,memory_mib,gpu_count,gpu_milli,gpu_memory_mib,models,selector,arrives_s,runs_s\n"
        "r,1000,2048,1,300,8192,H100,zone=east|!spot,5,60\n"
    )
    as_json = (
        '{"name": "r", "cpu_milli": 1000, "memory_mib": 2048, "gpu_count": 1, "gpu_milli": 300,'
        ' "gpu_memory_mib": 8192, "models": ["H100"], "selector": ["zone=east", "!spot"], "arrives_s": 5,'
        ' "runs_s": 60}\n'
    )
    one = trace.read_requests(written(tmp_path, as_csv, "r.csv"), nodes)
    other = trace.read_requests(written(tmp_path, as_json, "r.jsonl"), nodes)
    assert one.requests == other.requests
    assert one.requests[0].shape.selector == ("zone=east", "!spot")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"name": "r", "cpu_milli": 1, "memory_mib": 1, "gpu_count": 1}\n', "gpu_milli"),
        ('{"name": "r", "cpu_milli": 1, "memory_mib": 1, "gpu_count": 1, "gpu_milli": 5, "gpus": 1}\n', "gpus"),
        ('{"name": "r", "cpu_milli": 1, "memory_mib": 1, "gpu_count": 0, "gpu_milli": 5}\n', "device"),
        ('{"name": "r", "cpu_milli": 1, "memory_mib": 1, "gpu_count": 1, "gpu_milli": 5, "models": ["X"]}\n', "X"),
        ('{"name": "r"\n', "JSON"),
        ("[1]\n", "object"),
    ],
)
def test_a_bad_line_of_our_own_format_is_refused(tmp_path: Path, text: str, what: str) -> None:
    nodes = trace.read_nodes(written(tmp_path, OWN_NODES))
    with pytest.raises(CalabashError, match=what) as refused:
        trace.read_requests(written(tmp_path, text, "r.jsonl"), nodes)
    assert ":1" in refused.value.message
    assert refused.value.hint


def test_a_generated_trace_survives_being_written_and_read(tmp_path: Path) -> None:
    nodes, workload = generate.cluster(30, seed=3), generate.workload(200, seed=3)
    node_file, pod_file = generate.write_openb(nodes, workload, tmp_path)
    assert openb.read_nodes(node_file) == nodes
    assert [r.shape for r in openb.read_pods(pod_file).requests] == [r.shape for r in workload.requests]
    assert generate.cluster(30, seed=3) == nodes
    assert generate.cluster(30, seed=4) != nodes
