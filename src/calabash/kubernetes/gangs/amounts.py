"""Amounts that one member of a gang requests: devices, processors and claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from calabash.kubernetes.dialects.pod import pod_of
from calabash.kubernetes.dialects.translate import translate
from calabash.kubernetes.gangs.fields import field
from calabash.kubernetes.objects.quantity import parse_quantity
from calabash.kubernetes.pod_request import ContainerKind, PodRequest
from calabash.model.request import GpuRequest
from calabash.model.units import format_mib
from calabash.sharing.registry import mode_for

_CONTAINERS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAmounts:
    """Amounts of one pod.

    Args:
        devices: number of devices of the containers that run at the same time.
        slices: the requests in words, such as ``2 x 10GiB 25%``; "" if the pod requests no device.
        cpu_milli: thousandths of processors of the containers that run at the same time.
        claims: number of ResourceClaims, whose devices are not counted.
    """

    devices: int
    slices: str
    cpu_milli: int
    claims: int


def amounts_of(template: Any) -> MemberAmounts:
    """Return the amounts of a pod or a pod template.

    Raises:
        CalabashError: a request is invalid; the message names the container.
    """
    spec = {"metadata": field(template, "metadata") or {}, "spec": field(template, "spec") or {}}
    asked = translate(pod_of(spec))
    claims = field(template, "spec.resourceClaims")
    return MemberAmounts(
        devices=_devices(asked),
        slices=", ".join(_words(part.request) for part in asked.containers) if asked is not None else "",
        cpu_milli=int(_cpu(template) * 1000),
        claims=len(claims) if isinstance(claims, list) else 0,
    )


def _devices(asked: PodRequest | None) -> int:
    together, first = 0, 0
    for part in asked.containers if asked is not None else ():
        if part.kind is ContainerKind.INIT:
            first = max(first, together + part.request.count)
        else:
            together += part.request.count
    return max(first, together)


def _words(request: GpuRequest) -> str:
    mode = mode_for(request).name
    if request.memory_mib:
        text = format_mib(request.memory_mib)
    elif request.memory_milli:
        text = f"{request.memory_milli / 10:g}% of memory"
    else:
        text = request.mig or mode
    if mode == "vgpu":
        text += f" {request.core_percent}%"
    return f"{request.count} x {text}"


def _cpu(template: Any) -> Fraction:
    together, first = Fraction(0), Fraction(0)
    for name in ("initContainers", "containers"):
        containers = field(template, f"spec.{name}")
        for container in containers[:_CONTAINERS_MAX] if isinstance(containers, list) else ():
            amount = _cpu_of(container)
            if name == "initContainers" and field(container, "restartPolicy") != "Always":
                first = max(first, together + amount)
            else:
                together += amount
    return max(first, together)


def _cpu_of(container: Any) -> Fraction:
    for kind in ("requests", "limits"):
        amounts = field(container, f"resources.{kind}")
        written = amounts.get("cpu") if isinstance(amounts, Mapping) else None
        if isinstance(written, str | int | float) and not isinstance(written, bool):
            return max(Fraction(0), parse_quantity(written, what="cpu"))
    return Fraction(0)
