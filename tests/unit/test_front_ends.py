"""Tests of compute defaults: all front ends derive the same compute share and policy from the amounts of a request."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.kubernetes.claims.claims_world import slice_config

from calabash.adapters.kube.objects.claims import DeviceClass, ResourceClaimSpec
from calabash.api.jobs import JobOrder
from calabash.api.requests import AllocationRequest, decode
from calabash.broker.messages import LeaseOrder
from calabash.broker.server.broker import pool_request
from calabash.broker.tokens import TokenClaims
from calabash.cli.run import options as run_options
from calabash.cli.run.remote_run import order_of
from calabash.gateway.web.form_jobs import JOBS
from calabash.kubernetes.claims.requests import request_of
from calabash.kubernetes.dialects.pod import pod_of
from calabash.kubernetes.dialects.translate import translate, with_least_isolation
from calabash.kubernetes.pod_request import read_request, write_request
from calabash.model.compute import reapply_compute_defaults, with_compute, with_policy
from calabash.model.errors import CalabashError
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName
from calabash.scenario.reader import parse_scenario
from calabash.scenario.statements import AsksLine
from calabash.sim.trace import read_nodes, read_requests

FIXED, BURST, BEST_EFFORT = ComputePolicy.FIXED, ComputePolicy.BURST, ComputePolicy.BEST_EFFORT
STEP_MIB = 128  # claims are rounded up to whole steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Amounts, mode and policy that a user gives."""

    memory_mib: int | None = None
    cores: int | None = None
    policy: ComputePolicy | None = None
    mode: str = ""


def expected(named: Named) -> tuple[int, ComputePolicy] | None:
    """Return the compute share and the policy by the table of the documentation; None for a refusal."""
    whole = named.memory_mib is None and named.cores in (None, 100)
    if named.policy is BURST:
        return None if whole or named.cores is None else (named.cores, BURST)
    if named.policy is BEST_EFFORT:
        return None if whole else (named.cores or 100, BEST_EFFORT)
    shared = named.mode in ("", "vgpu", "brokered")
    if named.policy is None and named.cores is None and named.memory_mib is not None and shared:
        return (100, BEST_EFFORT)
    return (named.cores or 100, FIXED)


def _words(named: Named) -> dict[str, list[str]]:
    said_ = {
        "--memory": f"{named.memory_mib}MiB" if named.memory_mib else "",
        "--cores": str(named.cores or ""),
        "--policy": str(named.policy or ""),
        "--mode": named.mode,
    }
    return {flag: [value] for flag, value in said_.items() if value}


def _body(named: Named) -> dict[str, Any]:
    told = {"memory_mib": named.memory_mib, "cores": named.cores, "policy": named.policy, "mode": named.mode}
    return {name: value for name, value in told.items() if value}


def _asked(body: Mapping[str, Any], shape: type[AllocationRequest] = AllocationRequest) -> GpuRequest:
    return decode(json.dumps(body).encode(), shape).request(tenant="team", queue="default")


def of_the_command_line(named: Named) -> GpuRequest:
    return _asked(run_options.request(_words(named), ["true"]))


def of_the_api(named: Named) -> GpuRequest:
    return _asked(_body(named))


def of_a_client_that_sends_null(named: Named) -> GpuRequest:
    return _asked({"memory_mib": None, "cores": None, "policy": None, **_body(named)})


def of_a_job(named: Named) -> GpuRequest:
    return _asked({"command": ["true"], **_body(named)}, JobOrder)


def of_a_stored_job(named: Named) -> GpuRequest:
    order = decode(json.dumps({"command": ["true"], **_body(named)}).encode(), JobOrder)
    return msgspec.json.decode(msgspec.json.encode(order), type=JobOrder).request(tenant="team", queue="default")


def of_the_console(named: Named) -> GpuRequest:
    form = {
        "command": "true",
        "memory_mib": f"{named.memory_mib}MiB" if named.memory_mib else "",
        "cores": str(named.cores or ""),
        "policy": str(named.policy or ""),
        "mode": named.mode,
    }
    job = next(form_ for form_ in JOBS if form_.name == "job")
    return _asked(job.request(form)[1] or {}, JobOrder)


def of_a_pod(named: Named) -> GpuRequest:
    limits: dict[str, Any] = {"calabash.dev/gpus": 1}
    if named.memory_mib:
        limits["calabash.dev/memory"] = f"{named.memory_mib}Mi"
    if named.cores:
        limits["calabash.dev/cores"] = named.cores
    annotations = {"calabash.dev/mode": named.mode, "calabash.dev/policy": str(named.policy or "")}
    container = {"name": "main", "resources": {"limits": limits}}
    asked = translate(
        pod_of({"metadata": {"namespace": "team", "annotations": annotations}, "spec": {"containers": [container]}})
    )
    assert asked is not None
    assert read_request(write_request(asked)) == asked
    return asked.containers[0].request


def of_a_claim(named: Named) -> GpuRequest:
    capacity = {"memory": f"{named.memory_mib}Mi" if named.memory_mib else "", "cores": str(named.cores or "")}
    request = {
        "deviceClassName": "slice",
        "count": 1,
        "capacity": {"requests": {name: value for name, value in capacity.items() if value}},
    }
    expression = "device.driver == 'calabash.dev' && device.attributes['calabash.dev'].mode == 'vgpu'"
    found = {"metadata": {"name": "slice"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    policy = {"policy": str(named.policy)} if named.policy else {}
    config = {"opaque": {"driver": "calabash.dev", "parameters": slice_config(**policy)}}
    devices = {"requests": [{"name": "gpu", "exactly": request}], "config": [config] if named.policy else []}
    spec = msgspec.convert({"devices": devices}, ResourceClaimSpec)
    asked = request_of(spec, {"slice": msgspec.convert(found, DeviceClass)})
    assert asked is not None
    return asked


def of_a_remote_run(named: Named) -> GpuRequest:
    order = msgspec.convert(order_of(_words(named), ["true"]), LeaseOrder)
    asked = _asked(pool_request(_CLAIMS, order, "0" * 16, [], keep_s=60.0))
    assert (asked.core_percent, asked.policy) == (order.request.core_percent, order.request.policy)
    return asked


_CLAIMS = TokenClaims(
    server="0" * 16, key="0" * 16, id="1" * 16, name="team", gpus=8, memory_mib=0, cores=100, issued=0, expires=9
)
FRONT_ENDS: tuple[Callable[[Named], GpuRequest], ...] = (
    of_the_command_line, of_the_api, of_a_client_that_sends_null, of_a_job, of_a_stored_job, of_the_console, of_a_pod,
)  # fmt: skip
named_amounts = st.builds(
    Named,
    memory_mib=st.none() | st.integers(1, 300).map(lambda steps: steps * STEP_MIB),
    cores=st.none() | st.integers(1, 100),
    policy=st.none() | st.sampled_from(ComputePolicy),
    mode=st.sampled_from(["", "", "vgpu", "brokered", "exclusive"]),
)


def _given(front_end: Callable[[Named], GpuRequest], named: Named) -> tuple[int, ComputePolicy] | None:
    try:
        asked = front_end(named)
    except CalabashError as error:
        refusal = error
    else:
        return (asked.core_percent, asked.policy)
    assert refusal.hint
    assert "policy" in refusal.message
    return None


@given(named_amounts)
@example(Named(memory_mib=1024))
@example(Named(memory_mib=1024, cores=100))
@example(Named(policy=BURST))
@example(Named(policy=BURST, cores=100))
@example(Named(policy=BEST_EFFORT))
@example(Named(memory_mib=1024, policy=FIXED))
def test_all_front_ends_give_the_same_compute_for_the_same_amounts(named: Named) -> None:
    for front_end in FRONT_ENDS:
        assert _given(front_end, named) == expected(named), front_end.__name__


@given(named_amounts.filter(lambda named: named.memory_mib is not None))
def test_claim_for_a_slice_gives_the_same_compute_as_other_front_ends(named: Named) -> None:
    slice_ = Named(memory_mib=named.memory_mib, cores=named.cores, policy=named.policy, mode="vgpu")
    assert _given(of_a_claim, slice_) == expected(slice_)


@given(st.none() | st.integers(1, 40_000), st.none() | st.integers(1, 100))
def test_remote_run_gives_the_same_compute_as_a_local_run(memory_mib: int | None, cores: int | None) -> None:
    named = Named(memory_mib=memory_mib, cores=cores)
    assert _given(of_a_remote_run, named) == expected(named)


@pytest.mark.parametrize("mode", ["exclusive", "mig", "mps", "timeslice", "passthrough"])
def test_memory_without_cores_gets_all_compute_in_modes_that_do_not_share_it_by_policy(mode: str) -> None:
    found = with_compute(GpuRequest(memory_mib=1024, mode=ModeName(mode)), core_percent=None, policy=None)
    assert (found.core_percent, found.policy) == (100, FIXED)


def test_memory_without_cores_gets_all_compute_at_isolation_level_hardware() -> None:
    asked = GpuRequest(memory_mib=1024, isolation=Isolation.HARDWARE)
    assert with_compute(asked, core_percent=None, policy=None).policy is FIXED
    pod = pod_of(
        {
            "metadata": {"namespace": "team"},
            "spec": {"containers": [{"name": "main", "resources": {"limits": {"calabash.dev/memory": "8Gi"}}}]},
        }
    )
    translated = translate(pod)
    assert translated is not None
    (part,) = with_least_isolation(translated, Isolation.HARDWARE).containers
    assert (part.request.policy, part.request.core_percent) == (FIXED, 100)


def test_policy_with_a_mig_profile_needs_no_amounts() -> None:
    for policy in ComputePolicy:
        assert with_compute(GpuRequest(mig="1g.10gb"), core_percent=None, policy=policy).policy is policy
    assert with_compute(GpuRequest(mig="1g.10gb"), core_percent=None, policy=None).policy is FIXED


@given(named_amounts)
def test_mode_and_policy_set_later_have_the_same_result_as_set_at_once(named: Named) -> None:
    amounts = GpuRequest(memory_mib=named.memory_mib, mode=ModeName(named.mode))
    before = with_compute(GpuRequest(memory_mib=named.memory_mib), core_percent=named.cores, policy=None)
    before = replace(before, mode=amounts.mode)
    assert reapply_compute_defaults(before) == with_compute(amounts, core_percent=named.cores, policy=None)
    for policy in ComputePolicy:
        try:
            at_once = with_compute(amounts, core_percent=named.cores, policy=policy)
        except CalabashError:
            with pytest.raises(CalabashError, match="policy"):
                with_policy(before, policy)
        else:
            assert with_policy(before, policy) == at_once


def test_stored_request_of_an_earlier_version_keeps_its_meaning() -> None:
    """An earlier version wrote its defaults, all of the compute and ``fixed``, or left them out of a pod's annotation."""
    order = b'{"command":["true"],"memory_mib":1024,"cores":100,"policy":"fixed"}'
    asked = msgspec.json.decode(order, type=JobOrder).request(tenant="team", queue="default")
    assert (asked.core_percent, asked.policy) == (100, FIXED)
    written = '{"version":1,"dialect":"native","containers":[{"name":"main","memory_mib":1024}],"tenant":"team"}'
    (part,) = read_request(written).containers
    assert (part.request.core_percent, part.request.policy) == (100, FIXED)


def test_command_line_sends_only_options_that_were_given() -> None:
    body = run_options.request({"--memory": ["1GiB"]}, shlex.split("python3 train.py"))
    assert not body.keys() & {"cores", "policy"}
    assert run_options.request({"--cores": ["30"]}, ["true"])["cores"] == 30


def test_memory_without_compute_in_traces_and_scenarios_is_best_effort(tmp_path: Path) -> None:
    nodes, requests = tmp_path / "nodes.csv", tmp_path / "requests.csv"
    nodes.write_text("name,cpu_milli,memory_mib,gpu_count,gpu_model,gpu_memory_mib\nn,1000,1024,1,T4,15360\n")
    requests.write_text(
        "name,cpu_milli,memory_mib,gpu_count,gpu_milli,gpu_memory_mib\n"
        "alone,0,0,1,,1024\nall,0,0,1,1000,1024\nwhole,0,0,1,1000,\n"
    )
    found = read_requests(requests, read_nodes(nodes)).requests
    assert [request.shape.best_effort for request in found] == [True, False, False]
    written = parse_scenario(
        "rule   memory alone\nnodes  gpu-1: 1 x T4\nqueues q\nasks   q/alone: 1GiB\nasks   q/all: 1 gpu 1GiB\n"
        "then   bind q/alone -> gpu-1\n"
    )
    asked = [line.request for _, line in written.statements if isinstance(line, AsksLine)]
    assert [request.shape.best_effort for request in asked] == [True, False]
