"""API views of MIG cards, their partitions and layouts."""

from __future__ import annotations

from collections.abc import Iterable

from calabash.api import mig as mig_messages
from calabash.model.device import Device
from calabash.model.mig import MigGeometry
from calabash.model.mig_plan import possible_starts
from calabash.node.administration.mig_layouts import CardLayout, LayoutInstance, PlannedInstance


def mig_cards(cards: Iterable[CardLayout]) -> mig_messages.MigCards:
    """Return the views of all MIG cards."""
    return mig_messages.MigCards(items=[_card(card) for card in cards])


def mig_places(planned: Iterable[PlannedInstance]) -> mig_messages.MigPlaces:
    """Return the view of planned partitions."""
    return mig_messages.MigPlaces(items=[_place(place) for place in planned])


def mig_layout(layouts: Iterable[tuple[Device, Iterable[tuple[str, int]]]]) -> mig_messages.MigPlaces:
    """Return the view of the partitions that complete layouts have.

    Args:
        layouts: devices with the profile name and start of each partition.
    """
    return mig_messages.MigPlaces(
        items=[
            mig_messages.MigPlaceView(
                profile=name, device=device.uuid, device_index=device.index, start=start, reused=False, destroyed=[]
            )
            for device, places in layouts
            for name, start in places
        ]
    )


def _card(card: CardLayout) -> mig_messages.MigCardView:
    device, geometry = card.device, card.geometry
    return mig_messages.MigCardView(
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        mode=card.mode or "",
        pinned=device.pinned,
        enabled=device.mig_enabled,
        slices=geometry.slices,
        compute=geometry.compute,
        compute_free=geometry.compute - card.state.compute,
        instances=[_instance(geometry, instance) for instance in card.instances],
        profiles=[
            mig_messages.MigProfileView(
                name=p.name,
                memory_mib=p.memory_mib,
                compute=p.compute,
                slices=p.slices,
                starts=list(possible_starts(geometry, p, card.state, card.idle)) if card.accepts_instances else [],
            )
            for p in geometry.profiles
        ],
    )


def _instance(geometry: MigGeometry, instance: LayoutInstance) -> mig_messages.MigInstanceView:
    profile = geometry.profile(instance.place[0])
    return mig_messages.MigInstanceView(
        profile=instance.place[0],
        start=instance.place[1],
        slices=profile.slices if profile else 0,
        compute=profile.compute if profile else 0,
        memory_mib=profile.memory_mib if profile else 0,
        uuid=instance.uuid,
        state=instance.state,
        allocations=list(instance.allocations),
        parts=[
            mig_messages.MigPartView(
                profile=f"{part.compute}c.{instance.place[0]}",
                start=part.start,
                compute=part.compute,
                uuid=part.uuid,
                allocation=part.allocation or "",
            )
            for part in instance.parts
        ],
    )


def _place(planned: PlannedInstance) -> mig_messages.MigPlaceView:
    card, choice = planned.card, planned.choice
    return mig_messages.MigPlaceView(
        profile=planned.profile,
        device=card.uuid if card else "",
        device_index=card.index if card else -1,
        start=choice.start if choice else -1,
        part=choice.part if choice else -1,
        shared=choice.shared if choice else False,
        reused=choice.reused if choice else False,
        destroyed=[f"{i.profile} at {i.start}" for i in choice.destroyed] if choice else [],
    )
