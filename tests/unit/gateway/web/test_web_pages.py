"""Tests of the pages that the console draws from the pool's replies."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.gateway.replies import allocation, device, part, queue

from calabash.api import mig as mig_messages
from calabash.api import replies
from calabash.api.overview import OverviewCell
from calabash.gateway.web.drawing import by_device, compute_lane, held_of, memory_lane, mig_lane
from calabash.gateway.web.lists import matching, part_of
from calabash.gateway.web.pages import devices, overview, queues, workloads


def test_a_lane_of_memory_is_to_scale_and_filled_as_far_as_it_is_used() -> None:
    card = device(memory_mib=40000)
    held = held_of(
        card, [allocation(slices=[part(memory_mib=10000, memory_used_mib=2500)]), allocation("a2", slices=[])]
    )
    (piece,) = memory_lane(card, held)
    assert (piece.at, piece.wide, piece.used) == (0.0, 25.0, 25.0)
    assert piece.href == "/workloads/a1"


def test_a_slice_without_a_cap_is_the_whole_lane() -> None:
    card = device()
    (piece,) = memory_lane(card, held_of(card, [allocation(slices=[part(memory_mib=0, core_percent=100)])]))
    assert piece.wide == 100.0


def test_processes_without_a_slice_stand_at_the_right_end_of_the_lane() -> None:
    unmanaged = replies.UnmanagedProcessView(pid=9, uid=0, command="x", memory_mib=4000, allocation="")
    card = device(memory_mib=40000, unmanaged_processes=[unmanaged])
    (piece,) = memory_lane(card, [])
    assert (piece.at, piece.wide, piece.hue, piece.href) == (90.0, 10.0, 0, "")


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 100), st.integers(0, 400_000)), max_size=40))
def test_no_lane_is_ever_overfull_and_no_pieces_overlap(wanted: list[tuple[int, int, int]]) -> None:
    card = device()
    held = held_of(
        card,
        [
            allocation(f"a{i}", slices=[part(memory_mib=mib, core_percent=share, memory_used_mib=used)])
            for i, (mib, share, used) in enumerate(wanted)
        ],
    )
    for lane in (memory_lane(card, held), compute_lane(held)):
        end = 0.0
        for piece in lane:
            assert piece.at >= end - 0.1
            assert 0.0 <= piece.used <= 100.0
            end = piece.at + piece.wide
        assert end <= 100.1


def test_a_mig_lane_shows_each_instance_where_it_begins() -> None:
    card = mig_messages.MigCardView(
        uuid="GPU-0", index=0, model="A100", mode="mig", pinned="", enabled=True, slices=8, compute=7, compute_free=3,
        instances=[
            mig_messages.MigInstanceView(
                profile="2g.10gb", start=4, slices=2, compute=2, memory_mib=10000, uuid="M", state="used", allocations=["a1"]
            ),
            mig_messages.MigInstanceView(
                profile="1g.5gb", start=0, slices=1, compute=1, memory_mib=5000, uuid="N", state="idle", allocations=[]
            ),
        ],
        profiles=[],
    )  # fmt: skip
    held = held_of(device(), [allocation(slices=[part(memory_used_mib=5000)])])
    idle, used = mig_lane(card, held)
    assert (idle.at, idle.wide, idle.hue) == (0.0, 12.5, 0)
    assert (used.at, used.wide, used.used, used.href) == (50.0, 25.0, 50.0, "/workloads/a1")


def test_the_list_of_devices_is_filtered_by_what_the_url_says() -> None:
    cards = [device(0), device(1, health="lost", cause="xid 79"), device(2, model="Tesla T4")]
    shown = devices.listed(cards, {}, {"health": "lost"})
    assert [d.index for d in shown["part"].items] == [1]
    assert [d.index for d in devices.listed(cards, {}, {"q": "t4"})["part"].items] == [2]
    assert shown["part"].total == 3


def test_the_waiting_line_tells_reasons_and_leaves_out_what_runs() -> None:
    waiting = [allocation(f"w{i}", state="pending", reason="no_room") for i in range(3)]
    shown = workloads.line([allocation(), *waiting], {}, {})
    assert shown["part"].found == 3
    assert shown["reasons"] == [("no_room", 3)]


def test_workloads_of_a_device_are_found_whichever_of_their_slices_is_on_it() -> None:
    many = [allocation("a1", slices=[part(0), part(3)]), allocation("a2", slices=[part(1)])]
    assert [a.id for a in workloads.listed(many, {"device": "3"})["part"].items] == ["a1"]


def test_queues_stand_below_their_parents_and_a_circle_hides_none_at_the_top() -> None:
    rows = queues.tree([queue("b/x", parent="b"), queue("b", guarantee=2.0, allocated=3.0), queue("a")], devices=4)
    assert [(r.queue.name, r.depth) for r in rows] == [("a", 0), ("b", 0), ("b/x", 1)]
    assert (rows[1].own, rows[1].borrowed, rows[1].guarantee_at) == (50.0, 25.0, 50.0)


def test_many_devices_are_drawn_as_one_path_for_each_level() -> None:
    cells = [
        OverviewCell(
            index=i, health="lost" if i == 7 else "healthy", given_percent=i % 101, memory_percent=0, busy_percent=0
        )
        for i in range(1000)
    ]
    drawn = overview.device_map(cells)
    assert not drawn.cells
    assert sum(path.count("M") for _, path in drawn.paths) == 1000
    assert {level for level, _ in drawn.paths} == {"0", "1", "2", "3", "4", "bad"}
    assert sum(len(path) for _, path in drawn.paths) < 40_000


@given(st.integers(0, 300), st.text(max_size=4), st.sampled_from(["", "0", "1", "3", "99999999", "-1", "x"]))
def test_every_item_is_on_exactly_one_page(count: int, rows: str, page: str) -> None:
    items = list(range(count))
    seen: list[int] = []
    query = {"rows": rows, "page": "1"}
    for _ in range(count + 1):
        shown = part_of(items, query)
        seen += shown.items
        if not shown.after:
            break
        query["page"] = str(int(query["page"]) + 1)
    assert seen == items
    assert len(part_of(items, {"rows": rows, "page": page}).items) > 0 or not items


def test_a_filter_looks_without_regard_to_case() -> None:
    assert matching(["Ab", "c"], {"q": "AB"}, {"name": str}) == ["Ab"]


def test_slices_are_sorted_by_device_once() -> None:
    found = by_device([allocation(slices=[part(0), part(1)]), allocation("a2", slices=[part(1)])])
    assert {uuid: len(slices) for uuid, slices in found.items()} == {"GPU-0": 1, "GPU-1": 2}


def test_whatever_a_page_shows_is_json_too() -> None:
    shown = devices.listed([device()], by_device([allocation(slices=[part()])]), {})
    assert msgspec.json.decode(msgspec.json.encode(shown))["part"]["items"][0]["uuid"] == "GPU-0"
