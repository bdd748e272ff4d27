"""Translate a pod to the request that it makes.

Each container is translated by its dialect. The result is completed by the terms that hold for the whole pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from calabash.kubernetes.dialects.facts import facts_of, with_facts
from calabash.kubernetes.dialects.pod import AskedResources, AskingContainer, AskingPod
from calabash.kubernetes.dialects.protocol import DEFAULT_SETTINGS, Asking, DialectSettings
from calabash.kubernetes.dialects.registry import dialect_of, is_ours_to_translate
from calabash.kubernetes.objects.plan import MEMORY_MIB_MAX
from calabash.kubernetes.objects.quantity import Written, parse_quantity
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, PodRequest
from calabash.model.compute import reapply_compute_defaults
from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest, Isolation
from calabash.sharing.protocol import Misfit
from calabash.sharing.registry import mode_for

_LARGEST = Device(uuid=DeviceUuid("any"), index=0, vendor="", model="any card", memory_mib=1 << 44)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedContainer:
    """A container and its position in its pod.

    Args:
        path: path of the container in a JSON patch of the pod (``/spec/containers/0``).
        kind: init container, sidecar or main container.
    """

    path: str
    kind: ContainerKind
    container: AskingContainer


def containers_of(pod: AskingPod) -> Iterator[PlacedContainer]:
    """Yield all containers that may ask for devices, in the order in which they start."""
    for i, container in enumerate(pod.spec.init_containers or []):
        kind = ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT
        yield PlacedContainer(path=f"/spec/initContainers/{i}", kind=kind, container=container)
    for i, container in enumerate(pod.spec.containers):
        yield PlacedContainer(path=f"/spec/containers/{i}", kind=ContainerKind.MAIN, container=container)


def translate(
    pod: AskingPod,
    *,
    settings: DialectSettings = DEFAULT_SETTINGS,
    known: PodRequest | None = None,
) -> PodRequest | None:
    """Return the request that the pod makes; None if no container asks for devices.

    Args:
        pod: the pod.
        settings: units of memory resources.
        known: the result of an earlier translation of the same pod, or None. Containers in it are not translated again,
            because their original resource names have been replaced.

    Raises:
        CalabashError: a container's request is invalid; the message names the container.
    """
    before = {part.container: part.request for part in known.containers} if known else {}
    found: list[tuple[PlacedContainer, str, GpuRequest]] = []
    for place in containers_of(pod):
        container = place.container
        earlier = before.get(container.name)
        try:
            if known is not None and earlier is not None:
                found.append((place, known.dialect, earlier))
            elif (asked := _translated(pod, container, settings)) is not None:
                found.append((place, *asked))
        except CalabashError as error:
            raise _in_container(container, error) from error
    if not found:
        return None
    facts = facts_of(pod)
    parts: list[ContainerRequest] = []
    for place, _, request in found:
        try:
            complete = with_facts(request, facts, pod)
            require_possible(complete)
        except CalabashError as error:
            raise _in_container(place.container, error) from error
        parts.append(ContainerRequest(container=place.container.name, kind=place.kind, request=complete))
    _check_names(pod, parts)
    return PodRequest(
        dialect="+".join(sorted({word for _, dialect, _ in found for word in dialect.split("+")})),
        containers=tuple(parts),
        queue=facts.queue,
        gang_source=facts.gang_source,
        movable=facts.movable,
    )


def _translated(pod: AskingPod, container: AskingContainer, settings: DialectSettings) -> tuple[str, GpuRequest] | None:
    asking = Asking(pod=pod, container=container.name, amounts=amounts_of(container.resources), settings=settings)
    dialect = dialect_of(asking)
    return (dialect.name, dialect.request(asking)) if dialect is not None else None


def amounts_of(resources: AskedResources | None) -> dict[str, Fraction]:
    """Return a container's amounts of all resources that belong to a dialect, by resource name.

    Raises:
        CalabashError: the limit and the request of a resource differ. They must be equal because Kubernetes does not
            overcommit devices.
    """
    if resources is None:
        return {}
    limits, requests = _known(resources.limits), _known(resources.requests)
    for name, amount in requests.items():
        if amount and name not in limits:
            raise CalabashError(
                f"{name} is requested without a limit", hint="set it in limits; requests default to limits"
            )
        if limits.get(name, 0) != amount:
            raise CalabashError(
                f"{name}: the limit and the request differ", hint="set it in limits; requests default to limits"
            )
    return limits


def _known(amounts: Mapping[str, Written] | None) -> dict[str, Fraction]:
    return {
        name: parse_quantity(written, what=name)
        for name, written in (amounts or {}).items()
        if is_ours_to_translate(name)
    }


def require_possible(request: GpuRequest) -> None:
    """Refuse a request that no device could satisfy.

    Raises:
        CalabashError: TOO_LARGE if the memory is more than any device has, MODE_CONFLICT if the sharing mode that the
            user chose cannot provide the amounts.
    """
    if request.memory_mib is not None and request.memory_mib > MEMORY_MIB_MAX:
        raise CalabashError(
            f"{request.memory_mib} MiB per device exceed the limit of {MEMORY_MIB_MAX} MiB",
            reason=Reason.TOO_LARGE,
            hint="check the unit of the amount: some systems count memory in GiB or in blocks",
        )
    mode = mode_for(request)
    answer = mode.fits(_LARGEST, (), request)
    if isinstance(answer, Misfit) and answer.reason is Reason.MODE_CONFLICT:
        raise CalabashError(
            f"mode {mode.name} cannot give these amounts: {answer.message}",
            reason=answer.reason,
            hint="remove the mode; it is then chosen by the amounts",
        )


def with_least_isolation(asked: PodRequest, least: Isolation) -> PodRequest:
    """Return the request with the isolation level of every container raised to at least ``least``.

    Raises:
        CalabashError: the request of a container is impossible at that level.
    """
    parts = []
    for part in asked.containers:
        if part.request.isolation >= least:
            parts.append(part)
            continue
        request = reapply_compute_defaults(replace(part.request, isolation=least))
        require_possible(request)
        parts.append(replace(part, request=request))
    return replace(asked, containers=tuple(parts))


def _check_names(pod: AskingPod, parts: list[ContainerRequest]) -> None:
    names = [place.container.name for place in containers_of(pod)]
    for name in (part.container for part in parts):
        if not 1 <= len(name) <= 253 or names.count(name) > 1:
            raise CalabashError(
                f"container name {name[:64]!r} is empty, too long or used twice",
                hint="give each container a name of 1 to 253 characters that no other has",
            )


def _in_container(container: AskingContainer, error: CalabashError) -> CalabashError:
    return CalabashError(f"container {container.name[:64]}: {error.message}", reason=error.reason, hint=error.hint)
