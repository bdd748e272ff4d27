"""Shape of a request (all that placement depends on), placement of a shape on a node, and label expressions.

Thousands of requests share a few hundred shapes, and the engine caches its results per shape. Shapes are frozen, hashable, and
compared by content. Units are last in names; a GPU ``milli`` is a thousandth of the compute of one device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigPlace

WHOLE_MILLI = 1000
KINDS = 5
# Caches per shape are cleared at this size, because users choose the shapes and must not fill the memory.
SHAPES_KEPT_MAX = 16_384
_IN_EXPRESSION = re.compile(r"^(?P<key>[^\s=!(),]+)\s+(?P<op>in|notin)\s+\((?P<values>[^()]*)\)$")
_EQUALITY = re.compile(r"^(?P<key>[^\s=!(),]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s=!(),]*)$")
_EXISTENCE = re.compile(r"^(?P<absent>!?)(?P<key>[^\s=!(),]+)$")


class Topology(StrEnum):
    """Preferred topology of the devices of one request: any, one NVLink island, or one NUMA node."""

    ANY = ""
    NVLINK = "nvlink"
    NUMA = "numa"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """All properties of a request that its placement depends on.

    Args:
        cpu_milli, memory_mib: host resources of the whole request.
        gpu_count: number of devices; 0 for a CPU-only request.
        gpu_milli: compute of each device, 0 to 1000. 1000 without ``gpu_memory_mib`` is a whole device with its memory; 0 with
            ``gpu_memory_mib`` is best-effort compute.
        gpu_memory_mib: memory of each device; 0 if only compute is requested.
        gpu_slices: slices that the request takes of each device.
        gpu_slices_max: most slices of one device in the sharing mode; 0 for no limit.
        models: exact names of the acceptable device models; empty for all.
        card_memory_mib_min, card_memory_mib_max: range of the nominal memory of the card; 0 for no bound.
        selector: label expressions that must all hold on the node: ``k=v``, ``k!=v``, ``k in (a,b)``,
            ``k notin (a,b)``, ``k``, ``!k``.
        tolerations: tolerated taints (``key=value:Effect`` or ``key``); ``*`` for all.
        mig_profile: name of a MIG profile (``1g.10gb``), or several joined by ``&`` that are taken of each device together;
            ``gpu_milli`` and ``gpu_memory_mib`` must be 0 then.
        topology: preferred topology of the devices. topology_required: devices of another topology are not accepted.
        mode: sharing mode of the devices; "" for devices without a mode. Idle devices serve
            any mode unless their mode is fixed.
    """

    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_count: int = 0
    gpu_milli: int = 0
    gpu_memory_mib: int = 0
    gpu_slices: int = 0
    gpu_slices_max: int = 0
    models: frozenset[str] = frozenset()
    card_memory_mib_min: int = 0
    card_memory_mib_max: int = 0
    selector: tuple[str, ...] = ()
    tolerations: frozenset[str] = frozenset()
    mig_profile: str = ""
    topology: Topology = Topology.ANY
    topology_required: bool = False
    mode: str = ""
    content_hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        self._check()
        for expression in self.selector:
            parse_expression(expression)
        values = (
            self.cpu_milli, self.memory_mib, self.gpu_count, self.gpu_milli, self.gpu_memory_mib, self.gpu_slices,
            self.gpu_slices_max, self.models,
            self.card_memory_mib_min, self.card_memory_mib_max, self.selector, self.tolerations, self.mig_profile,
            self.topology, self.topology_required, self.mode,
        )  # fmt: skip
        object.__setattr__(self, "content_hash", hash(values))

    def __hash__(self) -> int:
        return self.content_hash

    def _check(self) -> None:
        for name in (
            "cpu_milli", "memory_mib", "gpu_count", "gpu_milli", "gpu_memory_mib", "gpu_slices", "gpu_slices_max",
        ):  # fmt: skip
            value = getattr(self, name)
            if value < 0:
                raise CalabashError(f"{name} {value} is negative", hint=f"{name} must be 0 or more")
        if self.gpu_milli > WHOLE_MILLI:
            raise CalabashError(
                f"gpu_milli {self.gpu_milli} exceeds a whole device (1000)",
                hint="gpu_milli is per device, at most 1000",
            )
        amount = self.gpu_milli or self.gpu_memory_mib or self.mig_profile
        if self.gpu_count and not amount:
            raise CalabashError(
                f"gpu_count is {self.gpu_count}, but no amount per device is requested",
                hint="set gpu_milli, gpu_memory_mib or mig_profile",
            )
        if self.gpu_slices > self.gpu_slices_max > 0:
            raise CalabashError(
                f"{self.gpu_slices} slices of one device are requested, the limit is {self.gpu_slices_max}",
                hint=f"request at most {self.gpu_slices_max} slices of each device",
            )
        if not self.gpu_count and amount:
            raise CalabashError(
                "an amount per device is requested, but gpu_count is 0", hint="set gpu_count to 1 or more"
            )
        if self.mig_profile and (self.gpu_milli or self.gpu_memory_mib):
            raise CalabashError(
                f"MIG profile {self.mig_profile} is combined with gpu_milli or gpu_memory_mib",
                hint="leave gpu_milli and gpu_memory_mib at 0 with mig_profile",
            )

    @property
    def mig_profiles(self) -> tuple[str, ...]:
        """Return the names of the MIG profiles that are taken of each device."""
        return tuple(self.mig_profile.split("&")) if self.mig_profile else ()

    @property
    def whole(self) -> bool:
        """Return True if each device is taken as a whole, with its memory."""
        return self.gpu_milli == WHOLE_MILLI and self.gpu_memory_mib == 0

    @property
    def fraction(self) -> bool:
        """Return True if the shape is a slice of exactly one device, which the policy chooses."""
        return self.gpu_count == 1 and not self.whole and not self.mig_profile

    @property
    def best_effort(self) -> bool:
        """Return True if memory is guaranteed and compute is not."""
        return self.gpu_count > 0 and self.gpu_milli == 0 and not self.mig_profile

    @property
    def kind(self) -> int:
        """Return the class of the shape, by its number of whole devices.

        The class is 0 for slices, 1 for one whole device, 2 for two, 3 for three or four, and 4 for more.
        """
        return min(KINDS - 1, 1 + (self.gpu_count - 1).bit_length()) if self.whole else 0

    @property
    def gpu_total_milli(self) -> int:
        """Return the compute over all devices."""
        return self.gpu_count * self.gpu_milli


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlacement:
    """Placement of a shape.

    Args:
        node: row of the node. devices: indices of the devices on the node.
        mig_places: for each device the positions of the MIG instances of the shape's profiles; an unknown position has
            the start -1.
        score: score of the node by the policy.
    """

    node: int
    devices: tuple[int, ...] = ()
    mig_places: tuple[tuple[MigPlace, ...], ...] = ()
    score: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelExpression:
    """A label expression: the value of ``key`` is in or not in ``values``, or the label exists or does not exist."""

    key: str
    values: frozenset[str]
    negated: bool
    existence: bool

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return True if the expression holds for the labels. As in Kubernetes, ``!=`` and ``notin`` hold without the label."""
        if self.existence:
            return (self.key in labels) != self.negated
        if self.key not in labels:
            return self.negated
        return (labels[self.key] in self.values) != self.negated


def parse_expression(text: str) -> LabelExpression:
    """Parse a label expression.

    Raises:
        CalabashError: the text is not a label expression.
    """
    text = text.strip()
    if match := _IN_EXPRESSION.match(text):
        values = frozenset(value.strip() for value in match["values"].split(",") if value.strip())
        if values:
            return LabelExpression(key=match["key"], values=values, negated=match["op"] == "notin", existence=False)
    elif match := _EQUALITY.match(text):
        return LabelExpression(
            key=match["key"], values=frozenset((match["value"],)), negated=match["op"] == "!=", existence=False
        )
    elif match := _EXISTENCE.match(text):
        return LabelExpression(key=match["key"], values=frozenset(), negated=bool(match["absent"]), existence=True)
    raise CalabashError(
        f"label expression {text!r} is not valid",
        reason=Reason.BAD_REQUEST,
        hint="write key=value, key!=value, key in (a,b), key notin (a,b), key or !key",
    )


def tolerates(tolerations: frozenset[str], taint: str) -> bool:
    """Return True if the tolerations accept a taint ``key=value:Effect``. PreferNoSchedule is always accepted."""
    key_value, _, effect = taint.partition(":")
    if effect == "PreferNoSchedule" or "*" in tolerations:
        return True
    key = key_value.partition("=")[0]
    return not tolerations.isdisjoint((taint, key_value, key, f"{key}:{effect}"))
