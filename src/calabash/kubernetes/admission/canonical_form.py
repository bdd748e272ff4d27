"""Canonical form of a pod that asks for devices: write its amounts into its containers and read them back. Pure.

Each container that asks for devices has ``calabash.dev/gpus``, which the kubelet counts in device IDs and a
ResourceQuota in devices. If the memory and the compute are known, it also has ``calabash.dev/memory`` and
``calabash.dev/cores``, which only quotas use. The rest of the request is in the annotation. The annotation is trusted
only for containers whose amounts agree with it.
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
    """Return the amounts of a request under the resource names of Calabash.

    Args:
        counted: True to include memory and compute. No node offers these two resources, so only Calabash's own
            scheduler can schedule a pod that has them. If False, only the number of devices is returned.
    """
    amounts = {GPUS: str(request.count)}
    if not counted:
        return amounts
    if request.memory_mib is not None:
        amounts[MEMORY] = f"{request.memory_mib}Mi"
    if request.policy is not ComputePolicy.BEST_EFFORT:
        amounts[CORES] = str(request.core_percent)
    return amounts


def in_form(container: AskingContainer, request: GpuRequest, *, counted: bool) -> bool:
    """Return True if the amounts of the container are those that ``native_amounts`` gives for the request.

    A container with an amount under another system's resource name is not in the canonical form.

    Args:
        counted: as in ``native_amounts``.
    """
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
    """Return the request that the pod's annotation states, reduced to the containers whose amounts agree with it.

    Returns None if the pod has no such annotation, if the annotation is invalid, or if no container agrees.

    Args:
        counted: as in ``native_amounts``.
    """
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
    """Return the limits or requests of a container in the canonical form.

    Resource names of dialects are replaced by those of Calabash. An amount that the user wrote under a name of Calabash
    keeps its spelling ("8Gi" does not become "8192Mi").

    Args:
        present: the limits or requests of the container as the user wrote them, by resource name.
        request: the request that was read from the container.
        counted: as in ``native_amounts``.
        amounts: the parsed amounts of ``present``, by resource name.
    """
    ours = native_amounts(request, counted=counted)
    kept = {name: written for name, written in (present or {}).items() if not is_ours_to_translate(name)}
    for name in NATIVE:
        if name in (present or {}) and amounts.get(name) and (counted or name == GPUS):
            kept[name] = (present or {})[name]
        elif name in ours:
            kept[name] = ours[name]
    return kept
