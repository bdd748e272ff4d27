"""Convert a pod's request to a bundle: which containers run at the same time."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from calabash.binder.cluster.bundle import Bundle, Part
from calabash.kubernetes.pod_request import ContainerKind, PodRequest


@lru_cache(maxsize=256)
def phases_of(kinds: tuple[ContainerKind, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the phases of a pod: for each phase, the indexes of the containers that run at the same time.

    Each init container runs in a phase of its own, with the sidecars before it. In the last phase all main containers
    run with all sidecars.
    """
    phases: list[tuple[int, ...]] = []
    sidecars: list[int] = []
    main: list[int] = []
    for number, kind in enumerate(kinds):
        if kind is ContainerKind.SIDECAR:
            sidecars.append(number)
        elif kind is ContainerKind.INIT:
            phases.append((*sidecars, number))
        else:
            main.append(number)
    if sidecars or main:
        phases.append((*sidecars, *main))
    return tuple(phases)


@lru_cache(maxsize=4096)  # pods of one job ask for the same
def bundle_of(asked: PodRequest, *, tenant: str, queue: str, priority: int, gang_size: int) -> Bundle:
    """Return the bundle of a pod.

    Args:
        asked: the request as the pod states it.
        tenant, queue, priority, gang_size: values that replace those of the request.

    Raises:
        CalabashError: the containers disagree in selector, queue or gang.
    """
    parts = tuple(
        Part(
            name=c.container,
            request=replace(c.request, tenant=tenant, queue=queue, priority=priority, gang_size=gang_size),
        )
        for c in asked.containers
    )
    return Bundle(parts=parts, phases=phases_of(tuple(c.kind for c in asked.containers)))
