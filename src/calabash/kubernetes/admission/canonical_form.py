"""The one form of a pod that asks for devices: how its amounts stand in its containers, and reading that back. Pure.

Each asking container has ``calabash.dev/gpus``, so that the kubelet counts tokens and a ResourceQuota devices, and where it
is known ``calabash.dev/memory`` and ``calabash.dev/cores``, for quotas alone. The rest of what was understood is in the
annotation; it is believed only as far as it agrees with these.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from calabash.kubernetes.dialects.pod import AskingContainer, AskingPod
from calabash.kubernetes.dialects.registry import DIALECTS, is_ours_to_translate
from calabash.kubernetes.dialects.translate import amounts_of, containers_of
from calabash.kubernetes.objects.names import CORES, GPUS, MEMORY, REQUEST
from calabash.kubernetes.objects.quantity import Written
from calabash.kubernetes.pod_request import ContainerRequest, PodRequest, read_request
from calabash.model.errors import CalabashError
from calabash.model.request import ComputePolicy, GpuRequest
from calabash.model.units import MIB

NATIVE = (GPUS, MEMORY, CORES)
_DIALECT_NAMES = frozenset(dialect.name for dialect in DIALECTS)


def native_amounts(request: GpuRequest, *, counted: bool) -> dict[str, str]:
    """The amounts as our own resource names say them; without ``counted`` only the number of devices."""
    amounts = {GPUS: str(request.count)}
    if not counted:
        return amounts
    if request.memory_mib is not None:
        amounts[MEMORY] = f"{request.memory_mib}Mi"
    if request.policy is not ComputePolicy.BEST_EFFORT:
        amounts[CORES] = str(request.core_percent)
    return amounts


def in_form(container: AskingContainer, request: GpuRequest, *, counted: bool) -> bool:
    """Whether the container's amounts are what the request would write."""
    try:
        present = {name: amount for name, amount in amounts_of(container.resources).items() if amount}
    except CalabashError:
        return False
    if set(present) - set(NATIVE) or present.get(GPUS) != request.count:
        return False
    memory, cores = present.get(MEMORY), present.get(CORES)
    if memory is not None and -(-memory // MIB) != request.memory_mib:
        return False
    if cores is not None and cores != request.core_percent:
        return False
    expected = native_amounts(request, counted=counted)
    return (memory is not None or MEMORY not in expected) and (cores is not None or CORES not in expected)


def known_request(pod: AskingPod, *, counted: bool) -> PodRequest | None:
    """What the annotation says of containers that agree with it; None when there is none, or nothing agrees."""
    text = pod.annotations.get(REQUEST)
    if text is None:
        return None
    try:
        said = read_request(text)
    except CalabashError:
        return None
    if not said.dialect or set(said.dialect.split("+")) - _DIALECT_NAMES:
        return None
    containers = {place.container.name: place.container for place in containers_of(pod)}
    agreeing = tuple(part for part in said.containers if _agrees(part, containers, counted=counted))
    if not agreeing:
        return None
    return PodRequest(dialect=said.dialect, containers=agreeing)


def _agrees(part: ContainerRequest, containers: Mapping[str, AskingContainer], *, counted: bool) -> bool:
    container = containers.get(part.container)
    return container is not None and in_form(container, part.request, counted=counted)


def formed(
    present: Mapping[str, Written] | None, request: GpuRequest, *, counted: bool, amounts: Mapping[str, Fraction]
) -> dict[str, Written]:
    """Limits or requests in the one form: foreign words out, ours in; what the user wrote in our words stays as written."""
    ours = native_amounts(request, counted=counted)
    kept = {name: written for name, written in (present or {}).items() if not is_ours_to_translate(name)}
    for name in NATIVE:
        if name in (present or {}) and amounts.get(name) and (counted or name == GPUS):
            kept[name] = (present or {})[name]
        elif name in ours:
            kept[name] = ours[name]
    return kept
