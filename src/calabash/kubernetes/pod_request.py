"""The request of a pod, stored as JSON in an annotation: one ``GpuRequest`` for each container that uses devices.

Admission writes the annotation. Decoding is strict, because any user who may write annotations of the pod might have
written it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec

from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.names import NAME_PATTERN
from calabash.model.request import DEFAULT_QUEUE, ComputePolicy, GpuRequest, Isolation, ModeName, Selector
from calabash.model.stated_version import require_stated
from calabash.model.versions import POD_REQUEST

REQUEST_BYTES_MAX = 64 * 1024
_OVERSIZED = "oversized: "  # no JSON text begins like this


class ContainerKind(StrEnum):
    """Kind of a container by its lifetime.

    INIT containers run before the main containers, one by one. A SIDECAR starts at its position among the init
    containers and runs to the end of the pod. MAIN containers run together. Ephemeral containers have no kind because
    they cannot have devices.
    """

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class GangSource(StrEnum):
    """Source of the number of members that a gang needs to start.

    NONE: the pod belongs to no gang. ANNOTATION: an annotation of the pod. The others are PodGroup objects of different
    API groups. WORKLOAD: ``scheduling.k8s.io``. COSCHEDULING: ``scheduling.x-k8s.io``. VOLCANO:
    ``scheduling.volcano.sh``.
    """

    NONE = ""
    ANNOTATION = "annotation"
    WORKLOAD = "workload"
    COSCHEDULING = "coscheduling"
    VOLCANO = "volcano"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """The request of one container: its name, its kind and the devices that it asks for."""

    container: str
    kind: ContainerKind
    request: GpuRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """The request of a pod.

    Args:
        dialect: names of the dialects in which the containers asked for devices, separated by ``+``.
        containers: the requests of the containers, in the order of the pod's spec. A pod that asks by claims has one
            entry for each claim instead. Such an entry has the pod's name for the claim, and the claim's request as it
            was when the pod was created; the claim itself is authoritative.
        queue: the queue that the pod names; "" for the default queue of its namespace. The requests then contain
            ``default``.
        gang_source: source of the number of members that the gang needs to start. If it is an object, the ``gang_size``
            of the requests is 1 until the object is read.
        movable: True if the pod may be evicted so that its replacement starts on another node.
        allocation_api: the API by which the pod asks: resource names (TOKENS) or claims.
    """

    dialect: str
    containers: tuple[ContainerRequest, ...]
    queue: str = ""
    gang_source: GangSource = GangSource.NONE
    movable: bool = False
    allocation_api: AllocationApi = AllocationApi.TOKENS


_Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
_Words = Annotated[tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=128)], ...], msgspec.Meta(max_length=64)]
_Part = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class _Container(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    kind: ContainerKind = ContainerKind.MAIN
    count: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    memory_mib: Annotated[int, msgspec.Meta(ge=1, le=2**43)] | None = None
    spill_mib: Annotated[int, msgspec.Meta(ge=0, le=2**43)] = 0
    memory_milli: _Part | None = None
    core_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    mode: Annotated[str, msgspec.Meta(max_length=32)] = ""
    mig: Annotated[str, msgspec.Meta(max_length=32)] = ""
    isolation: Annotated[str, msgspec.Meta(max_length=32)] | None = None
    policy: ComputePolicy = ComputePolicy.FIXED
    models: _Words = ()
    uuids: _Words = ()
    models_excluded: _Words = ()
    uuids_excluded: _Words = ()


class _Pod(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    version: int
    dialect: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    containers: Annotated[tuple[_Container, ...], msgspec.Meta(min_length=1, max_length=256)]
    tenant: _Name
    queue: _Name | None = None
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    gang: _Name | None = None
    gang_source: GangSource = GangSource.NONE
    gang_size: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    run_time_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    movable: bool = False
    allocation_api: AllocationApi = msgspec.field(name="door", default=AllocationApi.TOKENS)


# Created at import: msgspec crashes when two threads create the first decoder of a type at the same time.
_DECODER = msgspec.json.Decoder(_Pod)


def write_request(asked: PodRequest) -> str:
    """Return the request as the JSON text of the annotation.

    Tenant, queue, priority, gang and run time are the same for all containers of a pod and are written once.

    Raises:
        CalabashError: the text would be longer than ``read_request`` accepts.
    """
    first = asked.containers[0].request
    text = msgspec.json.encode(
        _Pod(
            version=POD_REQUEST.newest,
            dialect=asked.dialect,
            containers=tuple(_written(c) for c in asked.containers),
            tenant=first.tenant,
            queue=asked.queue or None,
            priority=first.priority,
            gang=first.gang or None,
            gang_source=asked.gang_source,
            gang_size=first.gang_size,
            run_time_s=first.run_time_s or None,
            movable=asked.movable,
            allocation_api=asked.allocation_api,
        )
    ).decode()
    if len(text) > REQUEST_BYTES_MAX:
        raise CalabashError(
            f"the request of the pod is {len(text)} bytes, at most {REQUEST_BYTES_MAX}",
            hint="name fewer models or devices",
        )
    return text


def _written(part: ContainerRequest) -> _Container:
    request, selector = part.request, part.request.selector
    return _Container(
        name=part.container,
        kind=part.kind,
        count=request.count,
        memory_mib=request.memory_mib,
        spill_mib=request.spill_mib,
        memory_milli=request.memory_milli,
        core_percent=request.core_percent,
        mode=request.mode,
        mig=request.mig,
        isolation=request.isolation.name.lower() if request.isolation else None,
        policy=request.policy,
        models=selector.models,
        uuids=selector.uuids,
        models_excluded=selector.models_excluded,
        uuids_excluded=selector.uuids_excluded,
    )


def read_request(text: str) -> PodRequest:
    """Decode the request in an annotation.

    Raises:
        CalabashError: VERSION_MISMATCH if the request has an unsupported version, BAD_REQUEST if ``write_request``
            cannot have written the text.
    """
    if len(text) > REQUEST_BYTES_MAX:
        raise _bad(f"{len(text)} bytes, at most {REQUEST_BYTES_MAX}")
    if text.startswith(_OVERSIZED):
        raise _bad(text.removeprefix(_OVERSIZED)[:128])
    try:
        pod = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        require_stated(POD_REQUEST, text, "the request of the pod")
        raise _bad(str(error)) from error
    POD_REQUEST.require(pod.version, "the request of the pod")
    names = [c.name for c in pod.containers]
    if len(set(names)) != len(names):
        raise _bad("a container stands in it twice")
    if (pod.gang is None) != (pod.gang_source is GangSource.NONE):
        raise _bad(f"gang {pod.gang!r} with source {pod.gang_source!r}")
    return PodRequest(
        dialect=pod.dialect,
        containers=tuple(_read(pod, container) for container in pod.containers),
        queue=pod.queue or "",
        gang_source=pod.gang_source,
        movable=pod.movable,
        allocation_api=pod.allocation_api,
    )


def oversized(size: int, limit: int, what: str = "it has") -> str:
    """Return the text that replaces an annotation which is too large to be kept in memory.

    ``read_request`` refuses it with an error that states the size and the limit.

    Args:
        size: size of the annotation, or of the part of the object from which it was made, in bytes.
        limit: greatest permitted size in bytes.
        what: beginning of the error's sentence, before the size.
    """
    return f"{_OVERSIZED}{what} {size} bytes, at most {limit}"


def _read(pod: _Pod, part: _Container) -> ContainerRequest:
    try:
        request = GpuRequest(
            count=part.count,
            memory_mib=part.memory_mib,
            spill_mib=part.spill_mib,
            memory_milli=part.memory_milli,
            core_percent=part.core_percent,
            mode=ModeName(part.mode),
            mig=part.mig,
            isolation=isolation_named(part.isolation) if part.isolation is not None else Isolation.COOPERATIVE,
            policy=part.policy,
            priority=pod.priority,
            tenant=pod.tenant,
            queue=pod.queue or DEFAULT_QUEUE,
            gang=pod.gang or "",
            gang_size=pod.gang_size,
            selector=Selector(
                models=part.models,
                uuids=tuple(DeviceUuid(u) for u in part.uuids),
                models_excluded=part.models_excluded,
                uuids_excluded=tuple(DeviceUuid(u) for u in part.uuids_excluded),
            ),
            run_time_s=pod.run_time_s or 0.0,
        )
    except CalabashError as error:
        raise _bad(f"container {part.name}: {error.message}") from error
    return ContainerRequest(container=part.name, kind=part.kind, request=request)


def isolation_named(word: str) -> Isolation:
    """Return the isolation level with a name. Raises CalabashError(BAD_REQUEST) if there is none."""
    for level in Isolation:
        if word == level.name.lower():
            return level
    raise CalabashError(
        f"isolation {word[:64]!r} is not known", hint=f"one of: {', '.join(level.name.lower() for level in Isolation)}"
    )


def _bad(what: str) -> CalabashError:
    return CalabashError(
        f"the request of the pod cannot be read: {what}",
        reason=Reason.BAD_REQUEST,
        hint="only admission writes it; create the pod again without it",
    )
