"""Tests of preparing claims: a claim gets its allocation once, also if several pods use it and calls are repeated."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from msgspec import structs
from tests.unit.kubernetes.claims.claims_world import card, config, result, share, slice_config
from tests.unit.kubernetes.node_plugin.claim_desk import CLAIM_UID, POD_UID, REF, Desk, pod_with
from tests.unit.kubernetes.node_plugin.node_world import OTHER

from calabash.adapters.kubelet import ClaimRef
from calabash.kubernetes.claims.device_names import card_names
from calabash.kubernetes.node_plugin.claims.prepared_files import ClaimNotes
from calabash.kubernetes.node_plugin.claims.store import known_claim
from calabash.kubernetes.node_plugin.retention import ClaimTenure
from calabash.model.errors import CalabashError, Reason
from calabash.node.membership.container import claim_allocation, container_allocation, is_of_claim
from calabash.node.slots.names import is_slot_name

FIRST, SECOND = card_names((card(0), card(1))).values()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_claim_is_granted_what_was_allocated_and_its_container_finds_it(desk: Desk) -> None:
    desk.allocate(share(f"{FIRST}-vgpu", share_id="s-9"))
    (answer,) = desk.preparer.prepare(REF)
    assert (answer.requests, answer.pool, answer.device, answer.share_id) == (("gpu",), "gpu-1", f"{FIRST}-vgpu", "s-9")
    (name,) = answer.cdi_names
    kind, _, device = name.partition("=")
    assert kind == "calabash.dev/slot"
    assert device.startswith(CLAIM_UID)
    assert desk.specs() == {
        device: {
            "SLOT": claim_allocation(CLAIM_UID),
            "CARDS": card(0).uuid,
            "CALABASH_CLAIM_11111111222233334444555555555555": "ml/c",
        }
    }
    (part,) = desk.held.placement.slices
    assert (part.device, part.memory_mib, part.core_percent) == (card(0).uuid, 10_240, 30)
    assert (desk.held.user, desk.held.request.tenant) == ("ml/c", "ml")
    assert [one.metadata.uid for one in desk.reported] == [CLAIM_UID]


def test_whose_it_is_says_the_pod_that_uses_it(desk: Desk) -> None:
    desk.allocate(share(f"{FIRST}-vgpu"))
    desk.observe(pod_with({"main": [{"name": "gpu"}]}, gpu="c"))
    desk.preparer.prepare(REF)
    assert desk.held.user == "ml/p0"
    found = desk.pods.of_allocation(desk.held.id)
    assert found is not None
    assert found.metadata.uid == POD_UID


def test_it_answers_the_same_again_and_after_a_restart_of_the_agent(desk: Desk) -> None:
    desk.allocate(share(f"{FIRST}-vgpu"))
    first = desk.preparer.prepare(REF)
    assert desk.preparer.prepare(REF) == first
    desk.start()
    assert desk.preparer.prepare(REF) == first
    assert len(desk.agent.held) == 1


def test_after_a_restart_of_the_machine_the_name_is_the_same_for_the_kubelet_still_gives_it(desk: Desk) -> None:
    desk.allocate(share(f"{FIRST}-vgpu"))
    first = desk.preparer.prepare(REF)
    before = desk.specs()
    for file in (desk.home / "cdi").iterdir():
        file.unlink()
    desk.agent.held.clear()
    desk.start()
    assert desk.preparer.prepare(REF) == first
    assert desk.specs() == before


def test_what_was_given_back_has_another_name_the_next_time(desk: Desk) -> None:
    desk.allocate(share(f"{FIRST}-vgpu"))
    first = desk.preparer.prepare(REF)
    desk.preparer.unprepare(REF)
    assert desk.held is None
    assert desk.specs() == {}
    assert desk.store.find(claim_allocation(CLAIM_UID)) is None
    assert desk.preparer.prepare(REF)[0].cdi_names != first[0].cdi_names


def test_giving_back_waits_until_it_is_free_and_says_so_when_it_does_not_become_so(desk: Desk) -> None:
    desk.allocate(share(f"{FIRST}-vgpu"))
    desk.preparer.prepare(REF)
    desk.agent.polls_to_end = 10**9
    with pytest.raises(CalabashError, match="ml/c is still used after 20 s") as caught:
        desk.preparer.unprepare(REF)
    assert caught.value.reason is Reason.CONFLICT
    assert desk.specs(), "a container that is started again still finds it"
    desk.agent.ending.clear()
    desk.agent.polls_to_end = 1
    desk.preparer.unprepare(REF)
    assert desk.specs() == {}


def test_a_claim_that_nobody_knows_is_given_back_without_a_word(desk: Desk) -> None:
    for uid in ("99999999-2222-3333-4444-555555555555", "../../etc/passwd", ""):
        desk.preparer.unprepare(ClaimRef(namespace="ml", uid=uid, name="x"))


def test_a_claim_that_is_gone_or_another_one_is_refused(desk: Desk) -> None:
    with pytest.raises(CalabashError, match="does not exist any more"):
        desk.preparer.prepare(REF)
    desk.allocate(share(f"{FIRST}-vgpu"), uid="22222222-2222-3333-4444-555555555555")
    with pytest.raises(CalabashError, match="was replaced by another claim") as caught:
        desk.preparer.prepare(REF)
    assert caught.value.reason is Reason.NOT_FOUND
    assert desk.agent.held == {}
    assert desk.desk.notes.all() == []


@pytest.mark.parametrize(
    ("results", "said_of_it"),
    [
        ([share(f"{FIRST}-vgpu", pool="other-node")], "other-node"),
        ([share("gpu-ffffffff-vgpu")], "gpu-ffffffff-vgpu"),
        ([share("../../x")], "x"),
        ([share(f"{FIRST}-vgpu", driver="gpu.example.com")], "no device of calabash.dev"),
        ([share(f"{FIRST}-vgpu", memory_mib=10**9)], ""),
        ([share(f"{FIRST}-vgpu", cores=101)], ""),
        ([result(f"{FIRST}-vgpu")], ""),
        ([share(f"{FIRST}-vgpu", request="a"), result(SECOND, request="b")], "modes"),
    ],
    ids=["pool", "device", "path", "driver", "memory", "cores", "no amounts", "two modes"],
)
def test_an_allocation_that_no_scheduler_wrote_is_refused_and_nothing_is_held(
    desk: Desk, results: list[dict[str, object]], said_of_it: str
) -> None:
    desk.allocate(*results)
    with pytest.raises(CalabashError) as caught:
        desk.preparer.prepare(REF)
    assert said_of_it in caught.value.message
    assert desk.agent.held == {}
    assert desk.specs() == {}


@pytest.mark.parametrize(
    "parameters",
    [
        slice_config(policy="fixed", more=1),
        slice_config(spill="-1Gi"),
        {"kind": "x" * 11_000},
        ["a"],
        slice_config(isolation="wall"),
        None,
    ],
)
def test_forged_parameters_are_refused(desk: Desk, parameters: object) -> None:
    desk.allocate(share(f"{FIRST}-vgpu"), configs=(config(parameters),))
    with pytest.raises(CalabashError):
        desk.preparer.prepare(REF)
    assert desk.agent.held == {}


def test_a_uid_that_is_none_makes_no_file(tmp_path: Path) -> None:
    notes = ClaimNotes(tmp_path / "claims")
    for uid in ("../x", "", "a/b", "A" * 70, ".", "x\0y"):
        with pytest.raises(CalabashError):
            notes.ensure(ClaimRef(namespace="ml", uid=uid, name="c"))
        assert notes.find(uid) is None
    assert not (tmp_path / "claims").exists()


def test_a_note_is_for_us_alone_and_a_damaged_one_is_written_anew(tmp_path: Path) -> None:
    notes = ClaimNotes(tmp_path / "claims")
    first = notes.ensure(REF)
    path = tmp_path / "claims" / CLAIM_UID
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert notes.all() == [first]
    path.write_bytes(b"\xff{")
    assert notes.all() == []
    assert notes.ensure(REF).nonce != first.nonce


def test_each_request_has_a_device_of_its_own_and_they_share_a_slot(desk: Desk) -> None:
    desk.allocate(
        share(f"{FIRST}-vgpu", request="a", share_id="s-1"), share(f"{SECOND}-vgpu", request="b/x", share_id="s-2")
    )
    one, two = desk.preparer.prepare(REF)
    assert (one.requests, two.requests) == (("a",), ("b",))
    first, second = (desk.specs()[name.partition("=")[2]] for answer in (one, two) for name in answer.cdi_names)
    assert (first["SLOT"], first["CARDS"], first["CALABASH_REQUEST_0"]) == (second["SLOT"], card(0).uuid, "0")
    assert (second["CARDS"], second["CALABASH_REQUEST_1"]) == (card(1).uuid, "1")
    assert "CALABASH_REQUEST_1" not in first
    assert len(desk.held.placement.slices) == 2


def test_several_devices_of_one_request_come_with_one_name(desk: Desk) -> None:
    desk.allocate(share(f"{FIRST}-vgpu", share_id="s-1"), share(f"{SECOND}-vgpu", share_id="s-2"))
    one, two = desk.preparer.prepare(REF)
    assert (len(one.cdi_names), len(two.cdi_names)) == (1, 0)
    (env,) = desk.specs().values()
    assert env["CARDS"] == f"{card(0).uuid},{card(1).uuid}"
    assert not any(name.startswith("CALABASH_REQUEST") for name in env)


def test_an_administrators_look_holds_nothing(desk: Desk) -> None:
    desk.allocate(result(FIRST, adminAccess=True), result(f"{SECOND}-vgpu", adminAccess=True))
    desk.preparer.prepare(REF)
    assert desk.agent.held == {}
    (env,) = desk.specs().values()
    assert env == {"SEES": f"{card(0).uuid},{card(1).uuid}"}
    desk.preparer.unprepare(REF)
    assert desk.specs() == {}


def test_two_claims_of_ours_in_one_container_are_refused(desk: Desk) -> None:
    desk.allocate(share(f"{SECOND}-vgpu"), name="d", uid="22222222-2222-3333-4444-555555555555")
    desk.allocate(share(f"{FIRST}-vgpu"))
    desk.observe(pod_with({"main": [{"name": "one"}, {"name": "two"}]}, one="c", two="d"))
    with pytest.raises(CalabashError, match="container main of pod ml/p0 uses claims c and d") as caught:
        desk.preparer.prepare(REF)
    assert "one claim" in caught.value.hint
    assert desk.agent.held == {}


def test_claims_of_another_driver_or_in_another_container_are_no_matter(desk: Desk) -> None:
    desk.allocate(share("x", driver="nic.example.com"), name="d", uid="22222222-2222-3333-4444-555555555555")
    desk.allocate(share(f"{SECOND}-vgpu"), name="e", uid="33333333-2222-3333-4444-555555555555")
    desk.allocate(share(f"{FIRST}-vgpu"))
    main, other = [{"name": "one", "request": "gpu"}, {"name": "two"}], [{"name": "three"}]
    desk.observe(pod_with({"main": main, "other": other}, one="c", two="d", three="e"))
    assert desk.preparer.prepare(REF)


def test_nothing_new_is_granted_while_the_node_gives_nothing_and_what_is_held_is_answered(desk: Desk) -> None:
    desk.allocate(share(f"{FIRST}-vgpu"))
    desk.refusal = CalabashError("another gives", reason=Reason.FOREIGN_PLUGIN)
    with pytest.raises(CalabashError, match="another gives"):
        desk.preparer.prepare(REF)
    desk.refusal = None
    first = desk.preparer.prepare(REF)
    desk.refusal = CalabashError("another gives", reason=Reason.FOREIGN_PLUGIN)
    assert desk.preparer.prepare(REF) == first


def test_who_finds_no_room_is_refused_at_once_with_the_numbers_when_nobody_leaves(desk: Desk) -> None:
    desk.allocate(share(f"{FIRST}-vgpu"))
    desk.agent.full = True
    began_ns = desk.clock.monotonic_ns()
    with pytest.raises(CalabashError, match="512MiB of 16GiB"):
        desk.preparer.prepare(REF)
    assert desk.clock.monotonic_ns() == began_ns
    assert desk.agent.grants == 1


def test_who_finds_no_room_waits_while_another_claim_is_given_back(desk: Desk) -> None:
    desk.allocate(share(f"{FIRST}-vgpu"))
    desk.agent.full = True
    with desk.desk.locks.work("another", ends=True), pytest.raises(CalabashError, match="512MiB"):
        desk.preparer.prepare(REF)
    assert desk.agent.grants > 10


def test_a_claim_that_was_allocated_anew_takes_the_place_of_what_it_had(desk: Desk) -> None:
    desk.allocate(share(f"{FIRST}-vgpu"))
    desk.preparer.prepare(REF)
    desk.allocate(share(f"{SECOND}-vgpu"))
    desk.preparer.prepare(REF)
    assert claim_allocation(CLAIM_UID) in desk.agent.ending, "the old one is to end, and the agent refuses meanwhile"


def test_a_brokered_claim_stands_until_it_is_given_back_and_has_one_request(desk: Desk) -> None:
    brokered = (config(slice_config(isolation="brokered")),)
    desk.allocate(share(f"{FIRST}-vgpu"), configs=brokered)
    desk.preparer.prepare(REF)
    assert desk.held.placement.mode == "brokered"
    assert desk.held.request.standing
    desk.preparer.unprepare(REF)
    desk.allocate(share(f"{FIRST}-vgpu", request="a"), share(f"{SECOND}-vgpu", request="b"), configs=brokered)
    with pytest.raises(CalabashError, match="2 requests with isolation brokered"):
        desk.preparer.prepare(REF)


def test_a_claim_is_kept_whatever_its_pods_do_until_nothing_is_allocated_to_it(desk: Desk) -> None:
    claim = desk.allocate(share(f"{FIRST}-vgpu"), uses=(POD_UID, OTHER))
    desk.preparer.prepare(REF)
    tenure, name = ClaimTenure(desk.store), claim_allocation(CLAIM_UID)
    assert desk.store.users(name) == {POD_UID, OTHER}
    assert tenure.retains(desk.held, 10**12)
    for uid in (POD_UID, OTHER):
        desk.observe(pod_with(uid=uid))
    assert not desk.pods.any_leaves([name])
    desk.observe(structs.replace(ended := pod_with(uid=OTHER), status=structs.replace(ended.status, phase="Succeeded")))
    assert not desk.pods.any_leaves([name]), "one of two is left"
    desk.go(pod_with())
    assert desk.pods.any_leaves([name]), "the kubelet is about to give it back"
    free = structs.replace(claim, status=structs.replace(claim.status, allocation=None))
    desk.store.update(known_claim(free))
    assert not tenure.retains(desk.held, 10**12)
    assert tenure.is_abandoned(desk.held)
    assert desk.store.users(name) is None, "anybody may still use it"


def test_before_anything_is_known_of_a_claim_it_is_kept(desk: Desk) -> None:
    desk.allocate(share(f"{FIRST}-vgpu"))
    desk.preparer.prepare(REF)
    desk.start()
    assert ClaimTenure(desk.store).retains(desk.held, 10**12)
    assert desk.store.users(desk.held.id) is None


def test_what_a_claim_has_is_named_after_it_alone() -> None:
    name = claim_allocation(CLAIM_UID)
    assert is_slot_name(name)
    assert is_of_claim(name)
    assert not is_of_claim(container_allocation(POD_UID, "claim"))
