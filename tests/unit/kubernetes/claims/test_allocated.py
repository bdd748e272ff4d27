"""Tests of plans from allocated claims: invalid allocations are refused; devices have the mode in which they were offered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kubernetes.claims.claims_world import NODE, allocated, card, config, result, share, slice_config

from calabash.adapters.kube.objects.claims import ResourceClaim
from calabash.kubernetes.claims.allocated import ClaimPlan, claim_plan
from calabash.kubernetes.claims.device_names import claim_devices
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ComputePolicy

CARDS = (card(0), card(1))
FIRST, SECOND = "gpu-00000000", "gpu-00000001"


def plan(*results: dict[str, Any], configs: tuple[Any, ...] = ()) -> ClaimPlan:
    return claim_plan(allocated(*results, configs=configs), NODE, CARDS)


def test_a_share_is_what_was_asked_for_and_its_reserve_is_consumed_beside_it() -> None:
    found = plan(share(f"{FIRST}-vgpu", 10 * 1024 + 32, 30))
    assert (found.mode, found.policy) == ("vgpu", ComputePolicy.FIXED)
    (part,) = found.placement(NODE).slices
    assert (part.device, part.memory_mib, part.core_percent) == (CARDS[0].uuid, 10 * 1024, 30)
    (request,) = found.requests
    assert (request.name, request.pool, request.share_ids) == ("gpu", NODE, ("s-1",))
    assert request.devices == (f"{FIRST}-vgpu",)


def test_who_asks_no_cores_is_promised_none() -> None:
    found = plan(share(f"{FIRST}-vgpu", cores=0))
    assert found.policy is ComputePolicy.BEST_EFFORT
    assert found.slices[0].core_percent == 12  # counted by its share of the card's memory


def test_whole_cards_of_a_claim_are_one_allocation_with_a_slice_of_each() -> None:
    found = plan(result(FIRST, request="a"), result(SECOND, request="b"))
    assert found.mode == "exclusive"
    assert [s.device for s in found.slices] == [c.uuid for c in CARDS]
    assert [r.name for r in found.requests] == ["a", "b"]
    assert [r.slices[0].device for r in found.requests] == [c.uuid for c in CARDS]


def test_a_mig_device_is_its_profile_at_its_place() -> None:
    (part,) = plan(result(f"{FIRST}-mig-1g-10gb-me-3")).slices
    assert (part.profile, part.start, part.core_percent) == ("1g.10gb+me", 3, 14)
    assert part.memory_mib == CARDS[0].mig.profile("1g.10gb+me").memory_mib  # type: ignore[union-attr]


def test_turns_have_a_cap_only_where_one_was_asked() -> None:
    def turns(memory: str) -> dict[str, Any]:
        return result(f"{FIRST}-timeslice", shareID="s", consumedCapacity={"memory": memory, "slices": "1"})

    assert [s.memory_mib for m in ("0", "2Gi") for s in plan(turns(m)).slices] == [0, 2048]
    assert plan(turns("0")).slices[0].core_percent == 0


def test_what_the_claim_says_counts_over_what_its_class_says() -> None:
    configs = (
        config(slice_config(policy="burst"), requests=("gpu",)),
        config(slice_config(policy="best-effort", spill="1Gi"), source="FromClass"),
    )
    found = plan(share(f"{FIRST}-vgpu", 2048 + 32), configs=configs)
    assert found.policy is ComputePolicy.BURST
    assert (found.slices[0].memory_mib, found.slices[0].spill_mib) == (3072, 1024)


def test_words_for_another_request_or_another_driver_are_not_read() -> None:
    configs = (config(slice_config(policy="burst"), requests=("other",)), config("?", driver="example.com"))
    assert plan(share(f"{FIRST}-vgpu"), configs=configs).policy is ComputePolicy.FIXED


def test_a_brokered_claim_is_a_slice_whatever_is_beside_it() -> None:
    brokered = (config(slice_config(isolation="brokered")),)
    assert plan(share(f"{FIRST}-vgpu"), configs=brokered).mode == "brokered"
    whole = plan(result(FIRST), configs=brokered)
    assert (whole.mode, whole.slices[0].memory_mib) == ("brokered", CARDS[0].memory_mib - 32)


def test_who_has_admin_access_sees_each_card_once_and_is_given_nothing() -> None:
    found = plan(*(result(name, adminAccess=True) for name in (FIRST, f"{FIRST}-observed", SECOND)))
    assert (found.admin_access, found.mode) == (True, "")
    assert [(s.device, s.memory_mib) for s in found.slices] == [(c.uuid, 0) for c in CARDS]


def test_results_of_other_drivers_are_theirs() -> None:
    found = plan(result("nic-0", driver="nics.example.com", pool="elsewhere"), result(FIRST))
    assert len(found.slices) == 1


@pytest.mark.parametrize(
    ("results", "configs", "reason", "why"),
    [
        ([], (), Reason.NOT_FOUND, "no device of calabash.dev"),
        ([result(FIRST, pool="other")], (), Reason.NOT_FOUND, "this is gpu-1"),
        ([result("gpu-ffffffff")], (), Reason.NOT_FOUND, "not on this node"),
        ([result(f"{FIRST}-mig-1g-10gb-7")], (), Reason.NOT_FOUND, "not on this node"),
        ([result(FIRST), result(FIRST)], (), Reason.MODE_CONFLICT, "twice"),
        ([result(FIRST), share(f"{SECOND}-vgpu")], (), Reason.MODE_CONFLICT, "modes exclusive and vgpu"),
        ([share(f"{FIRST}-mps"), share(f"{SECOND}-mps")], (), Reason.MODE_CONFLICT, "on one device"),
        ([share(f"{FIRST}-vgpu"), share(f"{SECOND}-vgpu", 4128)], (), Reason.MODE_CONFLICT, "differ in size"),
        ([share(f"{FIRST}-vgpu"), share(f"{SECOND}-vgpu", cores=0)], (), Reason.MODE_CONFLICT, "differ in"),
        ([result(FIRST), result(SECOND, adminAccess=True)], (), Reason.MODE_CONFLICT, "admin access"),
        ([result(f"{FIRST}-observed")], (), Reason.MODE_CONFLICT, "gives nothing of it"),
        ([result(f"{FIRST}-vgpu")], (), Reason.BAD_REQUEST, "slices"),
        ([share(f"{FIRST}-vgpu", 32)], (), Reason.BAD_REQUEST, "out of range"),
        ([share(f"{FIRST}-vgpu", 10**8)], (), Reason.BAD_REQUEST, "out of range"),
        ([share(f"{FIRST}-vgpu", cores=101)], (), Reason.BAD_REQUEST, "out of range"),
        ([share(f"{FIRST}-mps", cores=0)], (), Reason.BAD_REQUEST, "out of range"),
        ([share(f"{FIRST}-vgpu", share_id="")], (), Reason.BAD_REQUEST, "no share"),
        ([result(FIRST)], (config(slice_config(policy="burst")),), Reason.MODE_CONFLICT, "policy burst"),
        ([result(FIRST)], (config(slice_config(spill="1Gi")),), Reason.MODE_CONFLICT, "spill"),
        ([result(f"{FIRST}-vfio")], (config(slice_config(isolation="brokered")),), Reason.MODE_CONFLICT, "brokered"),
        ([share(f"{FIRST}-vgpu", cores=0)], (config(slice_config(policy="fixed")),), Reason.MODE_CONFLICT, "no cores"),
        ([result(FIRST)], (config(slice_config(policy="most")),), Reason.BAD_REQUEST, "policy"),
        ([result(FIRST)], (config(slice_config(more=1)),), Reason.BAD_REQUEST, "more"),
        ([result(FIRST)], (config(slice_config(spill="-1Gi")),), Reason.BAD_REQUEST, "spill"),
        ([result(FIRST)], (config({"kind": "Pod"}),), Reason.BAD_REQUEST, "not known"),
        ([result(FIRST)], (config([1]),), Reason.BAD_REQUEST, "are not an object"),
        ([result(FIRST)], (config(slice_config(policy="x" * 20_000)),), Reason.BAD_REQUEST, "at most"),
        ([result(f"gpu-{i:08x}") for i in range(33)], (), Reason.BAD_REQUEST, "at most 32"),
    ],
)
def test_what_no_scheduler_allocates_or_no_agent_can_grant_is_refused(
    results: list[dict[str, Any]], configs: tuple[Any, ...], reason: Reason, why: str
) -> None:
    with pytest.raises(CalabashError, match=why) as refused:
        plan(*results, configs=configs)
    assert refused.value.reason is reason


def theirs(kind: str = "GpuConfig", **fields: Any) -> Any:
    """Return parameters for NVIDIA's driver."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}
    return config(parameters, driver="gpu.nvidia.com")


@pytest.mark.parametrize(
    "words",
    [
        theirs(),
        theirs("MigDeviceConfig", sharing={"strategy": "TimeSlicing"}),
        theirs(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}}),
        theirs("VfioDeviceConfig", iommu={"backendPolicy": "LegacyOnly", "enableAPIDevice": False}),
    ],
)
def test_what_a_claim_for_nvidias_driver_says_is_followed_where_it_means_the_same(words: Any) -> None:
    assert plan(result(FIRST), configs=(words,)).mode == "exclusive"


@pytest.mark.parametrize(
    ("words", "why", "hint"),
    [
        (theirs(sharing={"strategy": "MPS", "mpsConfig": {}}), "MPS", "mps.calabash.dev"),
        (
            theirs(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}),
            "Long",
            "timeSlicing.interval",
        ),
        (theirs("VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD"}), "PreferIommuFD", "VFIO"),
        (theirs("ComputeDomainChannelConfig"), "cannot be read", "GpuConfig"),
        (theirs(sharing={"strategy": "TimeSlicing", "more": 1}), "more", "GpuConfig"),
        (config({"apiVersion": "v9", "kind": "GpuConfig"}, driver="gpu.nvidia.com"), "v9", "v1beta1"),
        (theirs(sharing={"strategy": "x" * 20_000}), "at most", "shorten"),
    ],
)
def test_what_means_something_else_here_is_refused_with_a_way_to_ask_for_it(words: Any, why: str, hint: str) -> None:
    with pytest.raises(CalabashError, match=why) as refused:
        plan(result(FIRST), configs=(words,))
    assert hint in refused.value.hint


NAMES = st.sampled_from([device.name for device in claim_devices(CARDS)])
TEXT = st.one_of(st.text(max_size=20), NAMES, st.sampled_from(["calabash.dev", NODE, "gpu", "gpu/a"]))
AMOUNT = st.one_of(st.text(max_size=10), st.sampled_from(["0", "1", "100", "10272Mi", "1e99", "-1", "0.5"]))
RESULT = st.fixed_dictionaries(
    {"request": TEXT, "driver": st.just("calabash.dev"), "pool": st.just(NODE), "device": TEXT},
    optional={
        "shareID": TEXT,
        "adminAccess": st.booleans(),
        "consumedCapacity": st.dictionaries(st.sampled_from(["memory", "cores", "slices", "x"]), AMOUNT),
    },
)
JSON = st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)), st.lists, max_leaves=5)
WORDS = st.one_of(
    JSON, st.dictionaries(st.sampled_from(["apiVersion", "kind", "policy", "spill", "isolation"]), AMOUNT | TEXT)
)


def attempt(results: list[dict[str, Any]], words: list[Any]) -> tuple[ClaimPlan | None, str]:
    """Return the plan, or the error."""
    try:
        return plan(*results, configs=tuple(config(w) for w in words)), ""
    except CalabashError as error:
        return None, error.message


@given(st.lists(RESULT, max_size=4), st.lists(WORDS, max_size=2))
def test_whatever_stands_in_a_status_it_is_a_plan_within_the_cards_or_one_clear_error(
    results: list[dict[str, Any]], words: list[Any]
) -> None:
    found, refused = attempt(results, words)
    if found is None:
        assert 0 < len(refused) < 2000
        return
    cards = {c.uuid: c for c in CARDS}
    for part in found.slices:
        assert 0 <= part.memory_mib - part.spill_mib <= cards[part.slice().device].memory_mib
        assert 0 <= part.core_percent <= 100
    assert len({part.device for part in found.slices}) == len(found.slices)


def test_a_claim_comes_back_from_the_wire_as_it_was() -> None:
    claim = allocated(share(f"{FIRST}-vgpu"), configs=(config(slice_config(policy="burst")),))
    assert msgspec.json.decode(msgspec.json.encode(claim), type=ResourceClaim) == claim
