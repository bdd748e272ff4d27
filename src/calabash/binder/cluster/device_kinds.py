"""Kinds of devices in a cluster.

Devices that no request can distinguish are of one kind, so that a shape is calculated once for thousands of devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from calabash.binder.cluster.bundle import Bundle, Layout, layout, resolve_bundle
from calabash.model.device import REPLICAS, Device, Health
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Names, Text, with_models
from calabash.model.request import ModeName
from calabash.sched import MODELS_DIFFER, Explanation, Shape
from calabash.sharing.protocol import Misfit
from calabash.sharing.registry import selector_misfit

SHAPES_KEPT_MAX = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDevice:
    """A device of a node.

    Args:
        modes: sharing modes that the node's agent serves; empty: all.
        foreign_mib: device memory that unmanaged processes (without an allocation) use.
        allocation_api: the only API by which the device can be requested; "": any.
    """

    device: Device
    modes: frozenset[ModeName] = frozenset()
    foreign_mib: int = 0
    allocation_api: str = ""

    @property
    def kind(self) -> str:
        """Name of the device's kind, composed of all properties by which requests can select devices."""
        served = f"/{'+'.join(sorted(self.modes))}" if self.modes else ""
        spills = f"/spills {self.device.spill_mib}MiB" if self.device.spill_mib else ""
        turns = f"/{self.device.replicas} in turns" if self.device.replicas != REPLICAS else ""
        allocation_api = f"/by {self.allocation_api}" if self.allocation_api else ""
        cut = "/cut" if self.device.mig else ""
        return f"{self.device.model}/{self.device.memory_mib}MiB{cut}{served}{spills}{turns}{allocation_api}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConstraints:
    """Constraints on nodes and devices besides the amounts; ``selector`` and ``tolerations`` as in ``sched.Shape``.

    Args:
        allocation_api: API by which the devices are requested; "": any.
    """

    selector: tuple[str, ...] = ()
    tolerations: frozenset[str] = frozenset()
    allocation_api: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A shape, and how the bundle is laid out on the devices that it gets."""

    shape: Shape
    layout: Layout


_Amounts = tuple[object, ...]


class DeviceKinds:
    """All kinds of devices that were added. ``version`` changes when a kind is added."""

    def __init__(self) -> None:
        self.version = 0
        self._samples: dict[str, NodeDevice] = {}
        self._known: dict[tuple[_Amounts, PlacementConstraints], tuple[Choice, ...] | Misfit] = {}

    def add(self, devices: Iterable[NodeDevice]) -> None:
        """Add the kinds of these devices."""
        for found in devices:
            if found.kind not in self._samples:
                healthy = replace(found.device, health=Health.HEALTHY, mig_instances=())
                self._samples[found.kind] = replace(found, device=healthy, foreign_mib=0)
                self._known.clear()
                self.version += 1

    def with_model_names(self, explanation: Explanation) -> Explanation:
        """Return an explanation of the scheduler with kinds replaced by model names, which users know.

        Where the explanation says that a device of the requested model does not fit, the other properties of its kind
        are shown, too: one of these is the reason.
        """
        shown = explanation.with_models(lambda name: self._model(name.value))
        causes = (
            replace(cause, text=with_models(cause.text, lambda name: self._describe_kind(name.value)))
            if self._only_the_rest_differs(cause.text)
            else as_shown
            for cause, as_shown in zip(explanation.causes, shown.causes, strict=True)
        )
        return replace(shown, causes=tuple(causes))

    def _only_the_rest_differs(self, cause: Text) -> bool:
        """Return True if a cause says that no device is of a requested kind, though some have the requested model.

        These devices differ from the request in another property of their kind.
        """
        if isinstance(cause, str) or cause.template != MODELS_DIFFER:
            return False
        there, asked = cause.argument("there"), cause.argument("asked")
        if not (isinstance(there, Names) and isinstance(asked, Names)):
            return False
        requested = {self._model(name.value) for name in asked.names}
        return not requested.isdisjoint(self._model(name.value) for name in there.names)

    def _model(self, kind: str) -> str:
        return self._samples[kind].device.model if kind in self._samples else kind

    def _describe_kind(self, kind: str) -> str:
        model = self._model(kind)
        rest = kind.removeprefix(model).replace("/", ", ").removeprefix(", ")
        return f"{model} ({rest})" if rest else model

    def choices(self, bundle: Bundle, constraints: PlacementConstraints) -> tuple[Choice, ...]:
        """Return the shapes that would serve the bundle: one, or several if the amounts depend on the kind of device.

        Raises CalabashError: unknown mode, no device is selected, or the bundle is too large for every kind of device.
        """
        key = (_amounts(bundle), constraints)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= SHAPES_KEPT_MAX:
                self._known.clear()
            found = self._known[key] = self._find_choices(bundle, constraints)
        if isinstance(found, Misfit):
            hint = "ask for less, or for other devices"
            if found.reason is Reason.NOT_PERMITTED:
                hint = "an administrator allows it where the agent of a node is started"
            raise CalabashError(found.message, reason=found.reason, hint=hint)
        return found

    def _find_choices(self, bundle: Bundle, constraints: PlacementConstraints) -> tuple[Choice, ...] | Misfit:
        if bundle.request.selector.uuids or bundle.request.selector.uuids_excluded:
            return Misfit(reason=Reason.BAD_REQUEST, message="devices of a cluster cannot be selected by UUID")
        reached = {
            k: s
            for k, s in self._samples.items()
            if s.allocation_api == constraints.allocation_api or not (s.allocation_api and constraints.allocation_api)
        }
        kinds = [(k, s) for k, s in reached.items() if selector_misfit(s.device, bundle.request.selector) is None]
        chosen: dict[Layout, list[str]] = {}
        misfit = self._no_kind_selected(reached, constraints.allocation_api)
        if not kinds:
            return misfit
        wanted = resolve_bundle(bundle)
        for kind, sample in kinds:
            on = wanted.on(sample.device)
            modes = {mode.name for mode in on.modes}
            if sample.modes and not modes <= sample.modes:
                served = ", ".join(sorted(sample.modes))
                misfit = Misfit(
                    reason=Reason.MODE_CONFLICT,
                    message=f"{sample.device.model} is served in {served}, asked {', '.join(sorted(modes))}",
                )
                continue
            answer = layout(on)
            if isinstance(answer, Misfit):
                misfit = answer
            else:
                chosen.setdefault(answer, []).append(kind)
        if not chosen:
            return misfit
        return tuple(self._choice(found, names, bundle, constraints) for found, names in chosen.items())

    def _choice(self, found: Layout, names: list[str], bundle: Bundle, constraints: PlacementConstraints) -> Choice:
        shape = Shape(
            gpu_count=len(found.columns),
            gpu_milli=found.core_milli,
            gpu_memory_mib=found.memory_mib,
            gpu_slices=found.slices,
            gpu_slices_max=found.slices_max,
            mig_profile=found.mig_profile,
            models=frozenset(names) if len(names) < len(self._samples) else frozenset(),
            mode=found.mode,
            cpu_milli=bundle.request.cpu_milli,
            memory_mib=bundle.request.host_memory_mib + found.host_mib,
            selector=constraints.selector,
            tolerations=constraints.tolerations,
        )
        return Choice(shape=shape, layout=found)

    def _no_kind_selected(self, reached: Mapping[str, NodeDevice], allocation_api: str) -> Misfit:
        if not self._samples:
            return Misfit(reason=Reason.NO_DEVICES, message="no node has reported a device")
        if not reached:
            return Misfit(reason=Reason.NO_DEVICES, message=f"no node gives its devices by {allocation_api}")
        models = ", ".join(sorted({s.device.model for s in reached.values()}))
        return Misfit(
            reason=Reason.SELECTOR_MISMATCH,
            message=f"none of {len(reached)} kinds of devices is selected (there are {models})",
        )


def _amounts(bundle: Bundle) -> _Amounts:
    """Return all fields of a bundle that determine its shape, as a cache key."""
    parts = tuple(
        (
            r.count,
            r.memory_mib,
            r.spill_mib,
            r.memory_milli,
            r.mig,
            r.core_percent,
            r.mode,
            r.isolation,
            r.policy,
            r.selector,
            r.cpu_milli,
            r.host_memory_mib,
        )
        for r in (part.request for part in bundle.parts)
    )
    return (parts, bundle.phases)
