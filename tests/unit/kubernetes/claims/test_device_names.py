"""Tests of device names in claims: they contain the UUID and the mode, and are unique."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kubernetes.claims.claims_world import card

from calabash.kubernetes.claims.device_names import card_names, claim_devices
from calabash.model.device import DeviceUuid
from calabash.model.mig import MigInstance
from calabash.sched.cluster.mig_tables import GEOMETRIES

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@given(st.lists(st.one_of(st.uuids().map(lambda u: f"GPU-{u}"), st.text(min_size=1)), unique=True, max_size=6))
def test_every_name_is_a_label_and_no_two_are_alike(uuids: list[str]) -> None:
    models = sorted(GEOMETRIES)
    cards = [card(i, uuid=DeviceUuid(u), mig=GEOMETRIES[models[i % len(models)]]) for i, u in enumerate(uuids)]
    names = [device.name for device in claim_devices(cards)]
    assert len(set(names)) == len(names)
    assert all(LABEL.fullmatch(name) for name in names)


def test_a_name_means_the_same_card_wherever_it_is_plugged_in() -> None:
    first = card(0, uuid=DeviceUuid("GPU-0a1b2c3d-0000-4000-8000-000000000000"))
    assert card_names([first])[first.uuid] == "gpu-0a1b2c3d"
    assert card_names([card(0), replace(first, index=5)])[first.uuid] == "gpu-0a1b2c3d"


def test_cards_whose_digits_begin_alike_have_long_names() -> None:
    alike = [card(i, uuid=DeviceUuid(f"GPU-0a1b2c3d-0000-4000-8000-00000000000{i}")) for i in range(2)]
    names = set(card_names(alike).values())
    assert len(names) == 2
    assert all(len(name) == len("gpu-") + 32 for name in names)


def test_profiles_with_and_without_an_engine_are_told_apart() -> None:
    names = {d.name for d in claim_devices([card()])}
    assert {"gpu-00000000-mig-1g-10gb-0", "gpu-00000000-mig-1g-10gb-me-0"} <= names


def test_every_place_that_the_driver_names_is_a_device() -> None:
    for geometry in GEOMETRIES.values():
        places = {(d.profile, d.start) for d in claim_devices([card(mig=geometry)]) if d.mode == "mig"}
        assert places == {(p.name, start) for p in geometry.profiles for start in p.starts}


def test_a_layout_for_mps_is_a_device_for_each_of_its_instances() -> None:
    layout = (MigInstance(profile="3g.40gb", start=0, fixed=True), MigInstance(profile="4g.40gb", start=4, fixed=True))
    found = [d for d in claim_devices([card(pinned="mps", mig_instances=layout)]) if d.mode == "mps"]
    assert [(d.name, d.profile, d.start) for d in found] == [
        ("gpu-00000000-mps-3g-40gb-0", "3g.40gb", 0),
        ("gpu-00000000-mps-4g-40gb-4", "4g.40gb", 4),
    ]
