"""Tests of the strict readers: valid files are read completely, and errors name file, line and the expected value."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.model.errors import CalabashError, Reason
from calabash.sched.cluster.shape import WHOLE_MILLI
from calabash.sched.cluster.spec import NodeSpec
from calabash.sim import generate, openb, trace
from calabash.sim.openb import NODE_COLUMNS, POD_COLUMNS
from calabash.sim.rows import read_csv, read_jsonl
from calabash.sim.workload import Workload

OPENB_NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
OPENB_PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
OWN_NODES = "name,cpu_milli,memory_mib,gpu_count,gpu_model\n"
OWN_REQUESTS = "name,cpu_milli,memory_mib,gpu_count,gpu_milli,models\n"


def own_requests(path: Path) -> Workload:
    """Read requests for a cluster of one node with T4 devices."""
    nodes = path.with_name("the-nodes.csv")
    nodes.write_text(OWN_NODES + "n1,96000,1000,8,T4\n")
    return trace.read_requests(path, trace.read_nodes(nodes))


Reader = Callable[[Path], object]
BAD: tuple[tuple[str, Reader, str, int, str], ...] = (
    ("a missing column", openb.read_nodes, "sn,cpu_milli,gpu,model\nn1,1,1,T4\n", 1, "memory_mib"),
    ("a negative number", openb.read_nodes, OPENB_NODES + "n1,-4,1,1,T4\n", 2, "-4"),
    ("an absurd number", openb.read_nodes, OPENB_NODES + "n1,4,1,1,T4\nn2,4,1,9999,T4\n", 3, "9999"),
    ("a number with a unit", openb.read_nodes, OPENB_NODES + "n1,4,1GiB,1,T4\n", 2, "1GiB"),
    ("digits with underscores", openb.read_nodes, OPENB_NODES + "n1,1_000,1,1,T4\n", 2, "1_000"),
    ("digits of another script", openb.read_nodes, OPENB_NODES + "n1,\u0663,1,1,T4\n", 2, "\u0663"),
    ("a number without end", openb.read_nodes, OPENB_NODES + "n1," + "9" * 5000 + ",1,1,T4\n", 2, "999"),
    ("a node without a model", openb.read_nodes, OPENB_NODES + "n1,4,1,1,\n", 2, "model"),
    ("a node that is there twice", openb.read_nodes, OPENB_NODES + "n1,4,1,1,T4\nn1,4,1,1,T4\n", 3, "n1"),
    ("a broken line", openb.read_nodes, OPENB_NODES + "n1,4,1,1,T4\nn2,4\n", 3, "2 cells"),
    ("more cards than a node holds", openb.read_nodes, OPENB_NODES + "n1,4,1,65,T4\n", 2, "65"),
    ("headings and no node", openb.read_nodes, OPENB_NODES, 2, "no node"),
    ("an empty cell", openb.read_pods, OPENB_PODS + ",4,1,1,500,\n", 2, "name"),
    ("an unknown model", openb.read_pods, OPENB_PODS + "p1,4,1,1,500,T4|Z80\n", 2, "Z80"),
    ("a column that pods need", openb.read_pods, "name,cpu_milli,num_gpu,gpu_milli\np1,4,1,500\n", 1, "memory_mib"),
    ("a number that no node has", openb.read_pods, OPENB_PODS + "p1,99999999999,1,1,500,\n", 2, "out of range"),
    ("a number with an exponent", openb.read_pods, OPENB_PODS + "p1,1e3,1,1,500,\n", 2, "whole number"),
    ("more devices than a node holds", openb.read_pods, OPENB_PODS + "p1,4,1,900,1000,\n", 2, "num_gpu"),
    ("more than a device of a pod", openb.read_pods, OPENB_PODS + "p1,4,1,1,1500,\n", 2, "out of range"),
    ("an amount without a device in a pod", openb.read_pods, OPENB_PODS + "p1,4,1,0,500,\n", 2, "no device"),
    ("cells beyond the headings", openb.read_pods, OPENB_PODS + "p1,4,1,1,500,,extra\n", 2, "7 cells"),
    ("a device of nothing", openb.read_pods, OPENB_PODS + "p1,4,1,1,0,\n", 2, "0 milli"),
    ("two parts of devices", openb.read_pods, OPENB_PODS + "p1,4,1,2,500,\n", 2, "500"),
    ("a pod that is there twice", openb.read_pods, OPENB_PODS + "p1,4,1,0,0,\np1,4,1,0,0,\n", 3, "p1"),
    ("headings and no pod", openb.read_pods, OPENB_PODS, 2, "no pod"),
    ("an unknown column", trace.read_nodes, OWN_NODES.strip() + ",hue\na,1,1,0,,red\n", 2, "hue"),
    ("a label without a value", trace.read_nodes, OWN_NODES.strip() + ",labels\nn1,1,1,1,T4,zone\n", 2, "zone"),
    ("a model on no node", own_requests, OWN_REQUESTS + "r1,1,1,1,500,H100\n", 2, "H100"),
    ("more than a device", own_requests, OWN_REQUESTS + "r1,1,1,1,1500,T4\n", 2, "1500"),
    ("an amount without a device", own_requests, OWN_REQUESTS + "r1,1,1,0,500,\n", 2, "gpu_count is 0"),
    ("a selector that is none", own_requests, OWN_REQUESTS.strip() + ",selector\nr1,1,1,1,500,T4,a b c\n", 2, "a b c"),
    ("a request that is there twice", own_requests, OWN_REQUESTS + "r,1,1,1,500,\nr,1,1,1,500,\n", 3, "r"),
)  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=[row[0] for row in BAD])
def test_error_of_a_bad_row_names_file_line_and_expected_value(
    tmp_path: Path, case: tuple[str, Reader, str, int, str]
) -> None:
    what, read, text, line, named = case
    path = tmp_path / "input.csv"
    path.write_text(text)
    with pytest.raises(CalabashError) as caught:
        read(path)
    assert caught.value.message.startswith(f"{path}:{line}: "), what
    assert named in caught.value.message
    assert caught.value.hint
    assert caught.value.reason is Reason.BAD_FILE


@pytest.mark.parametrize("bad", ["nan", "inf", "-1", "soon", "1e40", "1e400", "1_0"])
def test_invalid_time_is_refused(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "input.csv"
    path.write_text(f"{OWN_REQUESTS.strip()},arrives_s\nr1,1,1,1,500,T4,{bad}\n")
    with pytest.raises(CalabashError, match=r":2: column arrives_s"):
        own_requests(path)


@pytest.mark.parametrize("read", [openb.read_nodes, openb.read_pods, trace.read_nodes])
def test_error_of_an_empty_file_names_the_needed_headings(tmp_path: Path, read: Reader) -> None:
    path = tmp_path / "empty.csv"
    path.touch()
    with pytest.raises(CalabashError, match="is empty") as caught:
        read(path)
    assert "cpu_milli" in caught.value.hint


def test_missing_file_has_reason_not_found(tmp_path: Path) -> None:
    with pytest.raises(CalabashError) as caught:
        openb.read_nodes(tmp_path / "nowhere.csv")
    assert caught.value.reason is Reason.NOT_FOUND
    assert "nowhere.csv" in caught.value.message


@pytest.mark.parametrize("name", ["input.csv", "input.jsonl"])
def test_file_that_is_not_utf8_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes((OWN_NODES + "caf\xe9,1,1,1,T4\n").encode("latin-1"))
    with pytest.raises(CalabashError, match="not UTF-8") as caught:
        list(read_jsonl(path) if path.suffix == ".jsonl" else read_csv(path, needed=("name",)))
    assert caught.value.reason is Reason.BAD_FILE


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "not JSON"),
        ("[1]", "list instead of an object"),
        ('{"name": "a"}', "cpu_milli is missing"),
        ('{"name": "a", "cpu_milli": 1, "memory_mib": 1, "gpu_count": 0, "hue": "red"}', "hue"),
    ],
)
def test_jsonl_line_that_is_not_an_object_is_refused(tmp_path: Path, line: str, named: str) -> None:
    good = {"name": "n1", "cpu_milli": 1, "memory_mib": 1, "gpu_count": 1, "gpu_model": "T4"}
    path = tmp_path / "nodes.jsonl"
    path.write_text(json.dumps(good) + "\n" + line + "\n")
    with pytest.raises(CalabashError, match=f":2: .*{named}"):
        trace.read_nodes(path)


def test_jsonl_file_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nodes.jsonl"
    path.touch()
    with pytest.raises(CalabashError, match="no node"):
        trace.read_nodes(path)


def test_duplicate_heading_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "input.csv"
    path.write_text("name,name\na,b\n")
    with pytest.raises(CalabashError, match="twice"):
        list(read_csv(path, needed=("name",)))


@pytest.mark.parametrize("value", [True, [1], {"a": 1}, 1.5, None])
def test_jsonl_value_that_is_not_a_whole_number_is_refused(tmp_path: Path, value: object) -> None:
    row = {"name": "n1", "cpu_milli": value, "memory_mib": 1, "gpu_count": 1, "gpu_model": "T4"}
    path = tmp_path / "nodes.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(CalabashError, match=":1: column cpu_milli"):
        trace.read_nodes(path)


def test_byte_order_mark_and_crlf_line_ends_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "input.csv"
    path.write_bytes(("\ufeff" + OPENB_NODES + "n1,4,1,1,T4\n").replace("\n", "\r\n").encode())
    assert [node.name for node in openb.read_nodes(path)] == ["n1"]


@settings(max_examples=examples(40), deadline=None)
@given(
    rows=st.lists(
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8), min_size=2, max_size=2),
        max_size=12,
    )
)
def test_every_written_row_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> None:
    path = tmp_path_factory.mktemp("rows") / "input.csv"
    with path.open("w", encoding="utf-8", newline="") as sink:
        csv.writer(sink).writerows([["a", "b"], *rows])
    found = [[row.values["a"], row.values["b"]] for row in read_csv(path, needed=("a", "b"))]
    assert found == rows


def write_openb(nodes: Sequence[NodeSpec], requests: Workload, folder: Path) -> tuple[Path, Path]:
    """Write nodes and requests as files in the openb format; return the paths of the nodes file and the pods file."""
    node_file, pod_file = folder / "nodes.csv", folder / "pods.csv"
    with node_file.open("w", newline="", encoding="utf-8") as sink:
        rows = csv.writer(sink)
        rows.writerow(NODE_COLUMNS)
        for node in nodes:
            model = node.gpus[0].model if node.gpus else ""
            rows.writerow((node.name, node.cpu_milli, node.memory_mib, len(node.gpus), model))
    with pod_file.open("w", newline="", encoding="utf-8") as sink:
        rows = csv.writer(sink)
        rows.writerow((*POD_COLUMNS, "gpu_spec"))
        for request in requests.requests:
            s = request.shape
            spec = "|".join(sorted(s.models))
            rows.writerow((request.name, s.cpu_milli, s.memory_mib, s.gpu_count, s.gpu_milli, spec))
    return node_file, pod_file


@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 60))
def test_written_openb_files_are_read_back_completely(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int
) -> None:
    nodes, workload = generate.cluster(count, seed), generate.workload(count, seed)
    node_file, pod_file = write_openb(nodes, workload, tmp_path_factory.mktemp("openb"))
    assert openb.read_nodes(node_file) == nodes
    assert openb.read_pods(pod_file).requests == workload.requests


def test_unclosed_quote_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "input.csv"
    path.write_text(OPENB_PODS + '"p,1000,1,1,500,\n')
    with pytest.raises(CalabashError) as caught:
        openb.read_pods(path)
    assert caught.value.reason is Reason.BAD_FILE
    assert caught.value.hint


def test_generated_trace_depends_on_the_seed_only() -> None:
    assert generate.cluster(30, seed=3) == generate.cluster(30, seed=3)
    assert generate.cluster(30, seed=3) != generate.cluster(30, seed=4)


# ---- what is right ---------------------------------------------------------------------------------------------------

WHOLE_NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,96000,393216,8,G2\n"
WHOLE_PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "p0,12000,16384,1,1000,,LS,Running,0,100,0\n"
    "p1,6000,12288,1,460,V100M16|V100M32,LS,Running,10,40,10\n"
    "p2,8000,30517,0,0,,BE,Running,20,30,20\n"
    "p3,96000,1024,8,1000,,BE,Running,20,30,20\n"
)
WHOLE_OWN_NODES = (
    "name,cpu_milli,memory_mib,gpu_count,gpu_model,gpu_memory_mib,labels,taints,rack\n"
    "a,64000,262144,8,H100,81920,zone=east|pool=x,team=ml:NoSchedule,r1\n"
)


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    """Write a file and return its path."""
    path = folder / name
    path.write_text(text)
    return path


def test_openb_nodes_and_pods_are_read_completely(tmp_path: Path) -> None:
    nodes = openb.read_nodes(written(tmp_path, WHOLE_NODES))
    pods = openb.read_pods(written(tmp_path, WHOLE_PODS))
    assert [(n.name, n.cpu_milli, len(n.gpus)) for n in nodes] == [("n0", 64_000, 2), ("n1", 96_000, 8)]
    shapes = [request.shape for request in pods.requests]
    assert [(s.gpu_count, s.gpu_milli) for s in shapes] == [(1, 1000), (1, 460), (0, 0), (8, 1000)]
    assert shapes[1].models == {"V100M16", "V100M32"}
    assert pods.requests[1].arrives_s == 10
    assert pods.requests[1].runs_s == 30


def test_openb_pods_without_a_model_column_are_read(tmp_path: Path) -> None:
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1000,1,2,1000\n"
    shape = openb.read_pods(written(tmp_path, text)).requests[0].shape
    assert shape.gpu_total_milli == 2 * WHOLE_MILLI
    assert not shape.models


def test_csv_and_jsonl_of_a_trace_give_the_same_result(tmp_path: Path) -> None:
    nodes = trace.read_nodes(written(tmp_path, WHOLE_OWN_NODES))
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
