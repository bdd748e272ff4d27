"""MIG layouts: checks before any change, and plans that agree with the scheduler's."""

from __future__ import annotations

import pytest

from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.mig import MigInstance, MigState, mig_state
from calabash.model.request import ModeName
from calabash.node.administration.mig_layouts import CardLayout, complete_layout, plan_instances
from calabash.sched.cluster.mig_tables import GEOMETRIES

H100 = GEOMETRIES["H100"]
EMPTY = MigState()


def cut(
    index: int, state: MigState = EMPTY, *, idle: tuple[MigInstance, ...] = (), mode: str = "", pinned: str = ""
) -> CardLayout:
    device = Device(
        uuid=DeviceUuid(f"GPU-{index}"), index=index, vendor="nvidia", model="H100", memory_mib=81_000, mig=H100,
        pinned=pinned,
    )  # fmt: skip
    return CardLayout(
        device=device, geometry=H100, mode=ModeName(mode) if mode else None, state=state, idle=idle, instances=(),
        taken=bool(mode),
    )  # fmt: skip


def test_layout_without_starts_gets_the_same_starts_in_any_order() -> None:
    wanted = [("1g.10gb", -1), ("1g.10gb", -1), ("2g.20gb", -1), ("3g.40gb", -1)]
    places = complete_layout(H100, wanted, what="it")
    assert sorted(name for name, _ in places) == sorted(name for name, _ in wanted)
    assert mig_state(H100, places).mask.bit_count() == 8
    assert complete_layout(H100, list(reversed(wanted)), what="it") == places


def test_given_start_of_an_instance_is_kept() -> None:
    assert complete_layout(H100, [("1g.10gb", -1), ("3g.40gb", 0)], what="it")[0] == ("3g.40gb", 0)


@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        ([("1g.10gb", -1)] * 8, "no room for 1g.10gb"),
        ([("3g.40gb", 0), ("4g.40gb", 0)], "cannot have a 4g.40gb at 0"),
        ([("3g.40gb", 2)], "cannot have a 3g.40gb at 2"),
        ([("1g.5gb", -1)], "no profile"),
        ([("1c.3g.40gb", -1)], "a compute instance of a 3g.40gb"),
        ([("1g.10gb+me", -1), ("1g.10gb+me", -1)], r"no room for 1g.10gb\+me"),
    ],
)
def test_impossible_layout_is_refused_with_its_cause(wanted: list[tuple[str, int]], what: str) -> None:
    with pytest.raises(CalabashError, match=what):
        complete_layout(H100, wanted, what="it")


def test_plan_fills_the_fullest_card_first_and_skips_cards_in_other_modes() -> None:
    half = mig_state(H100, [("4g.40gb", 0)])
    cards = [cut(0), cut(1, half, mode="mig"), cut(2, mode="vgpu"), cut(3, pinned="vgpu")]
    answers = plan_instances(cards, ["2g.20gb", "7g.80gb", "7g.80gb"])
    assert [a.card.index if a.card else None for a in answers] == [1, 0, None]


def test_plan_names_reused_and_destroyed_instances() -> None:
    idle = tuple(MigInstance(profile="1g.10gb", start=s) for s in (4, 5, 6))
    full = cut(0, mig_state(H100, [("4g.40gb", 0)]), idle=idle, mode="mig")
    answers = plan_instances([full], ["1g.10gb", "1g.20gb", "3g.40gb"])
    assert [(a.choice.reused, len(a.choice.destroyed)) for a in answers if a.choice] == [(True, 0), (False, 1)]
    assert answers[2].choice is None


def test_compute_instances_requested_in_sequence_share_one_gpu_instance() -> None:
    answers = plan_instances([cut(0), cut(1)], ["1c.3g.40gb", "2c.3g.40gb", "1c.3g.40gb"])
    places = [(a.card.index, a.choice.place, a.choice.shared) for a in answers if a.card and a.choice]
    assert [shared for *_, shared in places] == [False, True, False]
    assert places[0][:2] == (0, (places[1][1].start, 2))
    assert places[1][1].part == 0
    assert places[2][0] == 0
