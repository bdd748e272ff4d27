"""Tests of usage collection: each record is stored once, whatever messages are lost and whichever process dies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.kubernetes.usage.usage_world import (
    NOW_S,
    CutError,
    NodeSide,
    ServerSide,
    cluster,
    granted,
    interval,
    sums_of,
)

from calabash.adapters.store import open_store
from calabash.api.collected import UsageBatch
from calabash.kubernetes.node_plugin.reports.usage_sender import UsageSending
from calabash.kubernetes.usage.collection import NODE_RECORDS_MAX, PODS_MAX, NodeAllowances, read_batch
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import in_full
from calabash.model.request import AllocationId

BEGIN_S = NOW_S - 50_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerSide]:
    side = ServerSide(open_store(f"sqlite:///{tmp_path / 'server.db'}"), cluster(("p0", "n1"), ("p1", "n2")))
    yield side
    side.store.close()


@pytest.fixture
def node(tmp_path: Path, server: ServerSide) -> Iterator[NodeSide]:
    side = NodeSide("n1", tmp_path, server)
    yield side
    side.store.close()


def test_intervals_arrive_on_the_account_of_their_pods_queue(node: NodeSide, server: ServerSide) -> None:
    record = node.grant(0, at_s=BEGIN_S)
    node.meter(record, 60.0)
    node.drain()
    (one,) = server.store.usage()
    assert (one.tenant, one.project, one.queue, one.user) == (
        "vision",
        "vision-train",
        "vision-train",
        "namespace:team",
    )
    assert (one.from_s, one.to_s, one.allocated_gpu_s, one.used_gpu_s) == (BEGIN_S, BEGIN_S + 60, 15.0, 7.5)
    assert node.store.outbox.waiting() == 0
    assert server.store.events() == []


def test_an_answer_that_is_lost_doubles_nothing(node: NodeSide, server: ServerSide) -> None:
    record = node.grant(0, at_s=BEGIN_S)
    for _ in range(7):
        node.meter(record, 60.0)
    node.cut = "answer"
    node.drain()
    assert server.sums() == sums_of(node.store.usage())
    assert len(server.store.usage()) == 7


def test_a_batch_that_is_sent_again_later_changes_nothing(node: NodeSide, server: ServerSide) -> None:
    record = node.grant(0, at_s=BEGIN_S)
    for _ in range(7):
        node.meter(record, 60.0)
    node.drain()
    before = server.store.usage()
    for name, body in list(server.log):
        assert server.post(name, body).last == 7
    assert server.store.usage() == before


def test_two_nodes_are_told_apart_by_their_tokens_whatever_they_send(
    node: NodeSide, server: ServerSide, tmp_path: Path
) -> None:
    node.meter(node.grant(0, at_s=BEGIN_S), 60.0)
    node.drain()
    other = NodeSide("n2", tmp_path, server)
    other.meter(other.grant(1, at_s=BEGIN_S), 30.0)
    other.drain()
    first, second = server.store.collected.sources()
    assert (first.node, first.last, second.node, second.last) == ("n1", 1, "n2", 1)
    assert sorted(one.to_s - one.from_s for one in server.store.usage()) == [30.0, 60.0]
    _, batch = server.log[0]
    assert server.post("n2", batch).last == 1, "of the database of n1, told by n2: another source"
    assert len(server.store.collected.sources()) == 3
    other.store.close()


def test_a_node_that_speaks_for_a_pod_of_another_node_charges_nobody(node: NodeSide, server: ServerSide) -> None:
    record = node.grant(1, at_s=BEGIN_S)  # p1 runs on n2
    node.meter(record, 60.0)
    node.drain()
    (one,) = server.store.usage()
    assert (one.tenant, one.project, one.user, one.to_s - one.from_s) == ("", "", "node n1", 60.0)
    (event,) = server.store.events()
    assert event.kind == "usage_doubtful"
    assert "team/p1 is on n2, not on n1" in in_full(event.message)


def test_of_a_pod_that_is_gone_its_node_is_believed_and_that_is_told(node: NodeSide, server: ServerSide) -> None:
    record = node.grant(5, at_s=BEGIN_S)
    node.meter(record, 60.0)
    node.meter(record, 60.0)
    node.drain()
    assert {(one.tenant, one.queue) for one in server.store.usage()} == {("vision", "vision-train")}
    (event,) = server.store.events()
    assert "team/p5 is gone" in in_full(event.message)


def test_a_node_that_is_installed_anew_while_its_pods_run_loses_none_of_its_new_intervals(
    node: NodeSide, server: ServerSide
) -> None:
    record = node.grant(0, at_s=BEGIN_S)
    for _ in range(4):
        node.meter(record, 60.0)
    node.drain()
    node.reinstall()
    again = node.grant(0, at_s=BEGIN_S + 500)
    for _ in range(2):
        node.meter(again, 30.0)
    node.drain()
    assert list(server.sums().values()) == [300.0]


def test_a_server_that_was_restored_has_what_it_lacks_sent_again(
    node: NodeSide, server: ServerSide, tmp_path: Path
) -> None:
    record = node.grant(0, at_s=BEGIN_S)
    node.meter(record, 60.0)
    node.drain()
    server.store.close()
    shutil.copy(tmp_path / "server.db", tmp_path / "backup.db")
    server.store = open_store(f"sqlite:///{tmp_path / 'server.db'}")
    server.__post_init__()
    for _ in range(5):
        node.meter(record, 60.0)
    node.drain()
    server.store.close()
    server.store = open_store(f"sqlite:///{tmp_path / 'backup.db'}")
    server.__post_init__()
    node.meter(record, 60.0)
    node.drain()
    assert server.sums() == sums_of(node.store.usage())
    assert server.store.events() == []


def test_a_nodes_database_that_was_put_back_to_an_earlier_state_goes_on_under_another_name(
    node: NodeSide, server: ServerSide, tmp_path: Path
) -> None:
    record = node.grant(0, at_s=BEGIN_S)
    for _ in range(2):
        node.meter(record, 60.0)
    node.drain()
    node.store.close()
    shutil.copy(tmp_path / "n1.db", tmp_path / "n1.snapshot")
    node.restart()
    for _ in range(5):
        node.meter(record, 60.0)
    node.drain()
    node.store.close()
    shutil.copy(tmp_path / "n1.snapshot", tmp_path / "n1.db")
    node.restart()
    node.until_s[record.id] = BEGIN_S + 1000
    for _ in range(3):
        node.meter(record, 30.0)
    node.drain()
    assert list(server.sums().values()) == [7 * 60.0 + 3 * 30.0]
    assert [one.last for one in server.store.collected.sources()] == [7, 5]


def test_a_node_that_floods_the_server_is_refused_until_others_have_had_their_turn() -> None:
    now = [0.0]
    allowances = NodeAllowances(now_s=lambda: now[0])
    allowances.took("n1", NODE_RECORDS_MAX)
    with pytest.raises(CalabashError, match="node n1 sends more than 20 intervals a second"):
        allowances.require("n1")
    allowances.require("n2")
    now[0] += 1.0
    allowances.require("n1")


def test_a_batch_of_many_pods_is_taken_in_parts_so_that_none_keeps_the_server_long(
    node: NodeSide, server: ServerSide
) -> None:
    for number in range(2 * PODS_MAX + 1):
        record = granted("n1", 5, f"{number:08x}-d9cb-469f-a165-708677289505", at_s=BEGIN_S)
        node.store.grant(record)
        node.store.add_usage([interval(record, BEGIN_S, BEGIN_S + 1, 0)])
    node.begin().step()
    assert len(server.store.usage()) == 3, "batches of this node are small"
    large = UsageSending(node.store.outbox, node._post)
    assert large.step()
    assert len(server.store.usage()) == 3 + PODS_MAX
    while large.step():
        pass
    assert len(server.store.usage()) == 2 * PODS_MAX + 1


def test_what_a_node_has_let_go_of_is_told_with_its_numbers_and_the_rest_goes_on(
    node: NodeSide, server: ServerSide, tmp_path: Path
) -> None:
    record = node.grant(0, at_s=BEGIN_S)
    for _ in range(6):
        node.meter(record, 60.0)
    node.drain()
    node.begin(kept=2).keep_bounded()
    server.store.close()
    server.store = open_store(f"sqlite:///{tmp_path / 'empty.db'}")
    server.__post_init__()
    node.meter(record, 60.0)
    node.drain()
    assert list(server.sums().values()) == [180.0], "the two that were kept, and the new one"
    (event,) = server.store.events()
    assert event.kind == "usage_lost"
    assert in_full(event.message).startswith("usage of node n1 from number 1 to 4 is not there any more, or")


def test_the_calendar_of_a_node_may_be_wrong_but_its_lengths_count(node: NodeSide, server: ServerSide) -> None:
    record = node.grant(0, at_s=NOW_S + 86_400 * 30)  # it was set a month ahead when the pod began
    node.meter(record, 60.0)
    node.drain()
    (one,) = server.store.usage()
    assert one.to_s <= NOW_S
    assert round(one.to_s - one.from_s, 6) == 60.0


def test_while_the_server_is_away_the_outbox_is_bounded_and_then_nothing_new_is_given_out(node: NodeSide) -> None:
    long = node.grant(0, at_s=BEGIN_S)
    for _ in range(30):
        node.meter(long, 60.0)
    expected = sums_of(node.store.usage())
    sending = node.begin(waiting_max=10)
    sending.keep_bounded()
    assert sending.full() is None, "neighbours of an hour are one"
    assert node.store.outbox.waiting() <= 2
    assert sums_of(node.store.usage()) == expected
    for number in range(1, 13):
        record = replace(long, id=AllocationId(f"{number:032x}-main"), user=f"team/q{number}")
        node.store.grant(record)
        node.until_s[record.id] = BEGIN_S
        node.meter(record, 1.0, last=True)
    sending.keep_bounded()
    refusal = sending.full()
    assert refusal is not None
    assert "usage records wait" in refusal.message
    assert "the limit is 10" in refusal.message


def test_what_may_have_been_seen_is_not_joined(node: NodeSide, server: ServerSide) -> None:
    record = node.grant(0, at_s=BEGIN_S)
    for _ in range(3):
        node.meter(record, 60.0)
    node.cut = "answer"
    with pytest.raises(CalabashError):
        node.sending.step()
    for _ in range(3):
        node.meter(record, 60.0)
    node.begin(waiting_max=1).keep_bounded()
    assert len(node.store.usage()) == 4
    node.drain()
    assert server.sums() == sums_of(node.store.usage())


def test_folded_rows_are_what_a_restarted_agent_goes_on_from(node: NodeSide, server: ServerSide) -> None:
    held, ended = node.grant(0, at_s=BEGIN_S), node.grant(5, at_s=BEGIN_S)
    for _ in range(5):
        node.meter(held, 60.0)
    node.meter(ended, 60.0, last=True)
    node.meter(held, 60.0)
    before = node.store.usage_sums.all_so_far([held]).get(held.id)
    node.drain()
    node.begin(kept=0).keep_bounded()
    assert node.store.usage_sums.all_so_far([held]).get(held.id) == before
    assert [one.allocation for one in node.store.usage()] == [held.id, held.id]
    node.meter(held, 60.0)
    node.drain()
    assert server.sums()[held.id[:50]] == 420.0


def test_a_container_that_is_made_anew_is_metered_under_numbers_of_its_own(node: NodeSide, server: ServerSide) -> None:
    first = node.grant(0, at_s=BEGIN_S)
    node.meter(first, 60.0, last=True)
    again = node.grant(0, at_s=BEGIN_S + 1000)
    assert [held.granted_at for held in node.store.allocations()] == [BEGIN_S + 1000]
    assert node.store.usage_sums.all_so_far([again]).get(again.id) is None
    node.meter(again, 30.0)
    node.grant(0, at_s=BEGIN_S + 1000)
    node.drain()
    assert sum(server.sums().values()) == 90.0
    assert len(server.store.usage()) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"entries": [{"number": 1}]}, "missing required field"),
        ({"epoch": "../../etc"}, "epoch"),
        ({"after": -1}, "after"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_a_batch_that_is_not_exactly_one_is_refused(change: dict[str, object], said: str) -> None:
    good = {"version": 1, "epoch": "0" * 32, "after": 0, "lost": False, "entries": []}
    assert read_batch(msgspec.json.encode(good)) == UsageBatch(epoch="0" * 32, after=0, entries=())
    with pytest.raises(CalabashError, match=said) as caught:
        read_batch(msgspec.json.encode(good | change))
    assert caught.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize("more", [{}, {"more": 1}])
def test_a_batch_of_a_newer_agent_is_refused_with_both_versions(more: dict[str, object]) -> None:
    newer = {"version": 2, "epoch": "0" * 32, "after": 0, "entries": []} | more
    with pytest.raises(CalabashError, match=r"batch of usage records has version 2; .* supports version 1") as caught:
        read_batch(msgspec.json.encode(newer))
    assert caught.value.reason is Reason.VERSION_MISMATCH
    assert caught.value.hint == "upgrade the server of the cluster before the agents of its nodes"


def test_numbers_that_do_not_grow_and_times_that_run_backwards_are_refused(node: NodeSide, server: ServerSide) -> None:
    record = node.grant(0, at_s=BEGIN_S)
    node.meter(record, 60.0)
    node.drain()
    batch = msgspec.json.decode(server.log[0][1])
    (entry,) = batch["entries"]
    for bad in ([entry, entry], [entry | {"to_s": entry["from_s"] - 1}], [entry | {"number": 0}], [entry] * 501):
        with pytest.raises(CalabashError, match="cannot be read"):
            server.post("n1", msgspec.json.encode(batch | {"entries": bad}))


def test_amounts_are_of_the_length_whatever_a_node_claims(node: NodeSide, server: ServerSide) -> None:
    record = node.grant(0, at_s=BEGIN_S)
    honest = interval(record, BEGIN_S, BEGIN_S + 60, 0)
    claimed = replace(honest, allocated_gpu_s=1e12, memory_mib_s=1e15, used_gpu_s=1e9, idle_s=1e9, uncertain_s=1e12)
    node.store.add_usage([claimed])
    node.drain()
    (one,) = server.store.usage()
    assert (one.allocated_gpu_s, one.memory_mib_s, one.used_gpu_s, one.idle_s) == (15.0, 61440.0, 60.0, 0.0)
    assert one.uncertain_s == max(0.0, server.now_s - one.to_s)


STEPS = ("meter", "meter", "end", "step", "cut request", "cut answer", "restart", "replay", "fold", "join", "drain")


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 1), st.integers(0, 2), st.integers(1, 700_000)), max_size=40
    )
)
def test_the_sums_are_equal_on_both_sides_whatever_happens_on_the_way(
    tmp_path_factory: pytest.TempPathFactory, played: list[tuple[str, int, int, int]]
) -> None:
    home = tmp_path_factory.mktemp("nodes")
    kube = cluster(("p0", "n1"), ("p1", "n2"))
    server = ServerSide(open_store(f"sqlite:///{home / 'server.db'}"), kube)
    nodes = [NodeSide("n1", home, server), NodeSide("n2", home, server)]
    expected: dict[str, float] = {}
    grants = 0
    for step, which, pod, hundredths in played:
        node = nodes[which]
        if step in {"meter", "end"}:
            held = {record.user: record for record in node.store.allocations()}
            grants += 1
            record = held.get(f"team/p{pod + 3 * which}") or node.grant(pod + 3 * which, at_s=BEGIN_S + grants)
            one = node.meter(record, hundredths / 100, last=step == "end")
            name = record.id[:50]
            expected[name] = expected.get(name, 0.0) + (one.to_s - one.from_s)
        elif step.startswith("cut"):
            node.cut = step.removeprefix("cut ")
        elif step == "replay" and server.log:
            server.post(*server.log[hundredths % len(server.log)])
        elif step == "restart":
            node.restart()
        elif step == "fold":
            node.begin(kept=hundredths % 4).keep_bounded()
        elif step == "join":
            node.store.outbox.join()
        else:
            _tried(node)
    for node in nodes:
        node.drain()
        assert node.store.outbox.waiting() == 0
        node.store.close()
    assert server.sums() == pytest.approx(expected, abs=1e-4)
    for one in server.store.usage():
        assert one.allocated_gpu_s == pytest.approx((one.to_s - one.from_s) / 4, abs=1e-4)
        assert one.used_gpu_s == pytest.approx((one.to_s - one.from_s) / 8, abs=1e-4)
    server.store.close()


def _tried(node: NodeSide) -> None:
    with suppress(CutError):
        node.sending.step()
