"""Tests of the example of the trace format: CSV and JSONL are equal, all requests are placed, all columns are documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from calabash.model.errors import CalabashError
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.engine import Engine
from calabash.sched.policies.registry import policy_named
from calabash.sim import trace

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "trace"
PAGE = ROOT / "docs" / "reference" / "trace-format.md"


def test_csv_and_jsonl_of_the_example_are_the_same_trace() -> None:
    nodes = trace.read_nodes(EXAMPLE / "nodes.csv")
    assert trace.read_nodes(EXAMPLE / "nodes.jsonl") == nodes
    requests = trace.read_requests(EXAMPLE / "requests.csv", nodes)
    assert trace.read_requests(EXAMPLE / "requests.jsonl", nodes) == requests
    assert len(nodes) == 5
    assert [request.name for request in requests.requests][-1] == "prepare"


@pytest.mark.parametrize("policy", ["pgb", "fgd", "bestfit"])
def test_requests_of_the_example_are_placed_according_to_their_constraints(policy: str) -> None:
    nodes = trace.read_nodes(EXAMPLE / "nodes.csv")
    workload = trace.read_requests(EXAMPLE / "requests.csv", nodes)
    cluster = Cluster(nodes)
    engine = Engine(cluster, policy_named(policy, demand=workload.demand))
    went = {}
    for request in workload.requests:
        placement = engine.decide(request.shape)
        assert placement is not None, request.name
        cluster.place(request.shape, placement)
        went[request.name] = cluster.names[placement.node]
    assert went["train-large"].startswith("train-")
    assert went["serve-b"] == "infer-1"
    assert went["slice"] == "slices-1"
    assert went["prepare"] == "host-1"


def test_trace_format_page_names_every_column_and_shows_the_example() -> None:
    page = PAGE.read_text()
    for column in (*trace.NODE_COLUMNS, *trace.NODE_OPTIONAL, *trace.REQUEST_COLUMNS, *trace.REQUEST_OPTIONAL):
        assert f"`{column}`" in page, column
    for name in ("nodes.csv", "requests.csv"):
        heading = (EXAMPLE / name).read_text().splitlines()[0]
        assert heading in page


@pytest.mark.parametrize(("cell", "named"), [("H100,81920,vgpu", "'vgpu'"), ("T4,16384,mig", "'T4'")])
def test_unsupported_device_mode_is_refused(tmp_path: Path, cell: str, named: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(f"name,cpu_milli,memory_mib,gpu_count,gpu_model,gpu_memory_mib,gpu_mode\nn,1,1,1,{cell}\n")
    with pytest.raises(CalabashError, match=f":2: .*{named}"):
        trace.read_nodes(path)
