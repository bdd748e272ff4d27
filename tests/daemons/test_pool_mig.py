"""MIG commands of operators on a pool: layouts of cards, previews of changes, fixed modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.daemons.world import World, until

from calabash.model.errors import CalabashError, Reason


@pytest.fixture
def cut(make_world: Callable[..., World]) -> World:
    """Start a pool with a card that has MIG and one that has not."""
    world = make_world("1xH100,1xT4")
    world.up()
    return world


def refused(world: World, path: str, body: dict[str, Any]) -> CalabashError:
    with pytest.raises(CalabashError) as caught:
        world.client.post(path, body)
    return caught.value


def test_cards_are_shown_and_what_would_be_is_answered_without_a_change(cut: World) -> None:
    cards = cut.client.get("/v1/mig")["items"]
    assert [(c["index"], c["slices"], c["compute"], c["enabled"]) for c in cards] == [(0, 8, 7, False)]
    starts = {p["name"]: p["starts"] for p in cards[0]["profiles"]}
    assert (starts["3g.40gb"], starts["7g.80gb"]) == ([0, 4], [0])
    answer = cut.client.post("/v1/mig/plan", {"profiles": ["3g.40gb", "4g.40gb", "1g.10gb"]})["items"]
    assert [(p["device_index"], p["start"]) for p in answer] == [(0, 4), (0, 0), (-1, -1)]
    assert cut.client.get("/v1/mig")["items"] == cards


def test_a_profile_that_no_card_has_is_refused_with_the_way_to_those_there_are(cut: World) -> None:
    error = refused(cut, "/v1/allocations", {"mig": "9g.90gb", "command": ["x"]})
    assert error.reason is Reason.SELECTOR_MISMATCH
    assert "calabash device mig show" in error.hint


def test_a_layout_is_checked_before_anything_is_changed(cut: World) -> None:
    def layout(device: str, *profiles: str) -> dict[str, Any]:
        return {"cards": [{"device": device, "instances": [{"profile": p} for p in profiles]}], "check": True}

    found = cut.client.post("/v1/mig/apply", layout("0", "1g.10gb", "4g.40gb", "2g.20gb"))["items"]
    assert [(p["profile"], p["start"]) for p in found] == [("4g.40gb", 0), ("2g.20gb", 4), ("1g.10gb", 6)]
    assert refused(cut, "/v1/mig/apply", layout("0", "4g.40gb", "4g.40gb")).reason is Reason.CONFLICT
    assert refused(cut, "/v1/mig/apply", layout("1", "1g.10gb")).reason is Reason.SELECTOR_MISMATCH
    assert refused(cut, "/v1/mig/apply", layout("7", "1g.10gb")).reason is Reason.NOT_FOUND
    _, allocation = cut.running(memory_mib=1000, models=["H100"])
    busy = refused(cut, "/v1/mig/apply", layout("0", "1g.10gb"))
    assert busy.reason is Reason.CONFLICT
    assert allocation["id"] in busy.message


def test_a_layout_waits_until_a_program_that_has_just_ended_is_off_its_card(cut: World) -> None:
    for _ in range(3):
        program, allocation = cut.running(mig="1g.10gb")
        program.kill()
        until(program.dead)
        card = {"device": "0", "instances": [{"profile": "3g.40gb", "start": 4}]}
        found = cut.client.post("/v1/mig/apply", {"cards": [card]})["items"]
        assert [(p["profile"], p["start"]) for p in found] == [("3g.40gb", 4)]
        assert allocation["id"] not in {a["id"] for a in cut.allocations()}


def test_a_card_is_kept_in_its_mode_over_the_death_of_the_pool(cut: World) -> None:
    kept = cut.client.post("/v1/devices/0/mode", {"mode": "mig"})
    assert kept["device"]["pinned"] == "mig"
    soft = {"memory_mib": 1000, "models": ["H100"], "command": ["x"]}
    assert refused(cut, "/v1/allocations", soft).reason is Reason.MODE_CONFLICT
    cut.kill()
    cut.up()
    assert refused(cut, "/v1/allocations", soft).reason is Reason.MODE_CONFLICT
    cut.client.post("/v1/devices/0/mode", {"mode": "auto"})
    assert cut.client.post("/v1/allocations", soft)["mode"] == "vgpu"


def test_what_makes_no_sense_is_refused_and_a_card_that_cannot_be_cut_is_given_whole(cut: World) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/devices/0/mode", {"mode": "frog"}),
        ("/v1/devices/0/mode", {"mode": "x" * 500}),
        ("/v1/devices/1/mode", {"mode": "mig"}),
        ("/v1/devices/9/mode", {"mode": "auto"}),
        ("/v1/mig/plan", {"profiles": []}),
        ("/v1/mig/plan", {"profiles": ["1g.10gb"] * 65}),
        ("/v1/mig/apply", {"cards": []}),
        ("/v1/mig/apply", {"cards": [{"device": "0", "instances": [{"profile": "1g.10gb", "start": 99}]}]}),
        ("/v1/allocations", {"mig": "1g.10gb", "memory_mib": 5}),
        ("/v1/allocations", {"mig": "$(reboot)"}),
        ("/v1/allocations", {"mig": "1g.5gb"}),
    ]
    sense = {Reason.BAD_REQUEST, Reason.UNKNOWN_MODE, Reason.SELECTOR_MISMATCH, Reason.NOT_FOUND}
    for path, body in bodies:
        assert refused(cut, path, body).reason in sense, body
    _, allocation = cut.running(isolation="hardware", memory_mib=4096, models=["T4"])
    assert allocation["mode"] == "exclusive"
