"""What is asked of the scheduler and what it answers: frozen values, hashable, compared by content.

A ``Shape`` is everything about a request that matters for where it fits; thousands of pods share a few hundred shapes,
and everything that the engine caches is cached per shape. Units stand last in the names; ``milli`` of a GPU is a
thousandth of its compute, per device.
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
# Caches per shape are emptied at so many: shapes are chosen by who submits, and must not fill the memory.
SHAPES_KEPT_MAX = 16_384
_IN_EXPRESSION = re.compile(r"^(?P<key>[^\s=!(),]+)\s+(?P<op>in|notin)\s+\((?P<values>[^()]*)\)$")
_EQUALITY = re.compile(r"^(?P<key>[^\s=!(),]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s=!(),]*)$")
_EXISTENCE = re.compile(r"^(?P<absent>!?)(?P<key>[^\s=!(),]+)$")


class Topology(StrEnum):
    """How the devices of one request want to lie: anywhere, in one NVLink island, on one NUMA node."""

    ANY = ""
    NVLINK = "nvlink"
    NUMA = "numa"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One request, reduced to what placement depends on.

    Args:
        cpu_milli, memory_mib: host resources of the whole request.
        gpu_count: devices wanted; 0 is a CPU-only request.
        gpu_milli: compute of each device, 0..1000; 1000 without ``gpu_memory_mib`` is the whole card, memory included; 0 with
            it is best-effort compute.
        gpu_memory_mib: memory of each device; 0 when only compute is asked for.
        models: acceptable device models by exact name; empty accepts all.
        gpu_slices, gpu_slices_max: slices that each device gives at once, and how many of its sharing mode a device takes; a
            maximum of 0 stands for none.
        card_memory_mib_min, card_memory_mib_max: range of the nominal size of the card itself; 0 is open.
        selector: label expressions that must all hold on the node: ``k=v``, ``k!=v``, ``k in (a,b)``,
            ``k notin (a,b)``, ``k``, ``!k``.
        tolerations: taints (``key=value:Effect`` or ``key``) that the request accepts; ``*`` accepts all.
        mig_profile: name of a MIG profile (``1g.10gb``), or several with ``&`` between them that each device gives together;
            then ``gpu_milli`` and ``gpu_memory_mib`` stay 0.
        topology, topology_required: a wish about the devices of one node, and whether it is a condition.
        mode: sharing mode of the devices; "" stands for the mode that unassigned devices have.
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
                raise CalabashError(f"{name} {value} is negative", hint="ask for zero or more")
        if self.gpu_milli > WHOLE_MILLI:
            raise CalabashError(
                f"gpu_milli {self.gpu_milli} is more than one device", hint="gpu_milli is per device, at most 1000"
            )
        amount = self.gpu_milli or self.gpu_memory_mib or self.mig_profile
        if self.gpu_count and not amount:
            raise CalabashError(
                f"{self.gpu_count} devices of nothing are asked for",
                hint="give gpu_milli, gpu_memory_mib or mig_profile",
            )
        if self.gpu_slices > self.gpu_slices_max > 0:
            raise CalabashError(
                f"{self.gpu_slices} slices of one device are asked for, which takes {self.gpu_slices_max}",
                hint=f"ask for at most {self.gpu_slices_max} slices of each device",
            )
        if not self.gpu_count and amount:
            raise CalabashError("a device amount is asked for without a device", hint="set gpu_count to 1 or more")
        if self.mig_profile and (self.gpu_milli or self.gpu_memory_mib):
            raise CalabashError(
                f"MIG profile {self.mig_profile} already says how much",
                hint="leave gpu_milli and gpu_memory_mib at 0 with mig_profile",
            )

    @property
    def mig_profiles(self) -> tuple[str, ...]:
        """What each device gives, one by one."""
        return tuple(self.mig_profile.split("&")) if self.mig_profile else ()

    @property
    def whole(self) -> bool:
        """Each device is taken as a whole card, memory included."""
        return self.gpu_milli == WHOLE_MILLI and self.gpu_memory_mib == 0

    @property
    def fraction(self) -> bool:
        """Exactly one device is shared: the policy chooses which."""
        return self.gpu_count == 1 and not self.whole and not self.mig_profile

    @property
    def best_effort(self) -> bool:
        """Its devices promise it memory and no compute."""
        return self.gpu_count > 0 and self.gpu_milli == 0 and not self.mig_profile

    @property
    def kind(self) -> int:
        """Class by devices, below KINDS: 0 a share, 1 one card, 2 two, 3 up to four, 4 more."""
        return min(KINDS - 1, 1 + (self.gpu_count - 1).bit_length()) if self.whole else 0

    @property
    def gpu_total_milli(self) -> int:
        """Compute over all devices."""
        return self.gpu_count * self.gpu_milli


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlacement:
    """Where a shape goes: the cluster's row of the node, device indices there, and the policy's score.

    ``mig_places`` are the places of MIG instances, for each device those of the shape's profiles; one that is not there
    begins at -1.
    """

    node: int
    devices: tuple[int, ...] = ()
    mig_places: tuple[tuple[MigPlace, ...], ...] = ()
    score: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelExpression:
    """``key`` in, not in, present or absent."""

    key: str
    values: frozenset[str]
    negated: bool
    existence: bool

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Kubernetes' meaning: a negated comparison also holds where the label is absent."""
        if self.existence:
            return (self.key in labels) != self.negated
        if self.key not in labels:
            return self.negated
        return (labels[self.key] in self.values) != self.negated


def parse_expression(text: str) -> LabelExpression:
    """Read one label expression; raises CalabashError when it is none."""
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
        f"label expression {text!r} is not understood",
        reason=Reason.BAD_REQUEST,
        hint="write key=value, key!=value, key in (a,b), key notin (a,b), key or !key",
    )


def tolerates(tolerations: frozenset[str], taint: str) -> bool:
    """Whether a taint ``key=value:Effect`` keeps the request away. PreferNoSchedule never does."""
    key_value, _, effect = taint.partition(":")
    if effect == "PreferNoSchedule" or "*" in tolerations:
        return True
    key = key_value.partition("=")[0]
    return not tolerations.isdisjoint((taint, key_value, key, f"{key}:{effect}"))
