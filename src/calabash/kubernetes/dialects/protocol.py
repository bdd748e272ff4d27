"""The interface that each dialect implements, the container that it reads, and helpers to build its request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from calabash.kubernetes.dialects.pod import AskingPod
from calabash.kubernetes.objects.quantity import whole
from calabash.model.compute import with_compute
from calabash.model.errors import CalabashError
from calabash.model.request import ComputePolicy, GpuRequest, Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectSettings:
    """MiB in one unit of memory resources whose unit depends on how the other system was configured in the cluster.

    The resources are ``aliyun.com/gpu-mem``, ``nvidia.com/mps-memory`` (Alauda) and ``volcano.sh/vgpu-memory``.
    """

    aliyun_memory_mib: int = 1024
    alauda_memory_mib: int = 1024
    volcano_memory_mib: int = 1


DEFAULT_SETTINGS = DialectSettings()
ANNOTATION_CHARACTERS_MAX = 64 * 130  # the longest list of words


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A container that may ask for devices.

    Args:
        pod: the pod of the container; annotations and labels are read from it.
        container: name of the container.
        amounts: amounts that the container asks for, by resource name.
        settings: units of memory resources.
    """

    pod: AskingPod
    container: str
    amounts: Mapping[str, Fraction]
    settings: DialectSettings = DEFAULT_SETTINGS

    def has(self, name: str) -> bool:
        """Return True if the container asks for a nonzero amount of the resource."""
        return self.amounts.get(name, Fraction(0)) != 0

    def count(self, name: str) -> int:
        """Return the amount of a resource that the container asks for, as a whole number; 0 if it asks for none.

        Raises:
            CalabashError: the amount is not a whole number.
        """
        return whole(self.amounts.get(name, Fraction(0)), what=name)

    def percent(self, name: str) -> int | None:
        """Return the percentage (1 to 100) of a resource that the container asks for; None if it asks for none.

        Raises:
            CalabashError: the amount is out of range.
        """
        value = self.count(name)
        if value > 100:
            raise CalabashError(f"{name} {value} is out of range", hint="1 to 100 percent of one device")
        return value or None

    def annotation(self, *names: str) -> str:
        """Return the value of the first of these annotations that the pod has; "" if it has none of them.

        Raises:
            CalabashError: the annotation is too long.
        """
        return next((text for name in names if (text := annotation_text(self.pod, name))), "")


def _never(asking: Asking) -> bool:
    del asking
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The resource names and annotations of one system, and their translation to a request.

    Args:
        name: value of the annotation ``calabash.dev/dialect``.
        system: name of the system, for users.
        resources: resource names of the system, each with its meaning for the user documentation.
        annotations: annotations and labels of the pod that the system reads, each with its meaning.
        request: returns the request of a container; called only if the container asks in this dialect (``claims``).
        asked_by: annotations of the pod that ask for devices without any resource name.
        queues: labels or annotations of the pod that name its queue.
        schedulers: names of the system's schedulers; a pod that names one is planned by Calabash instead.
        order: precedence among dialects that share a resource name; the lowest number has precedence.
        marks: resource names that occur in this system only. A container that asks for one of them asks in this
            dialect. Empty if this holds for all of ``resources``.
        prefix: prefix of resource names that are not listed in ``resources``; "" if there are none.
        also: returns True if a container asks in this dialect for a reason other than its resource names.
    """

    name: str
    system: str
    resources: Mapping[str, str]
    request: Callable[[Asking], GpuRequest]
    annotations: Mapping[str, str] = field(default_factory=dict)
    asked_by: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    schedulers: frozenset[str] = frozenset()
    order: int = 50
    marks: frozenset[str] = frozenset()
    prefix: str = ""
    also: Callable[[Asking], bool] = _never

    def names(self, resource: str) -> bool:
        """Return True if the resource name belongs to this dialect."""
        return resource in self.resources or bool(self.prefix and resource.startswith(self.prefix))

    def claims(self, asking: Asking) -> bool:
        """Return True if the container asks for devices in this dialect."""
        for name, amount in asking.amounts.items():
            marked = name in self.marks if self.marks else self.names(name)
            if amount and (marked or (self.prefix and name.startswith(self.prefix))):
                return True
        return self.also(asking)


def annotation_text(pod: AskingPod, name: str) -> str:
    """Return the value of an annotation of the pod without surrounding space; "" if the pod does not have it.

    Raises:
        CalabashError: the annotation is longer than ``ANNOTATION_CHARACTERS_MAX``, which bounds the work per pod.
    """
    text = pod.annotations.get(name, "")
    if len(text) > ANNOTATION_CHARACTERS_MAX:
        raise CalabashError(f"{name} has {len(text)} characters", hint=f"at most {ANNOTATION_CHARACTERS_MAX}")
    return text.strip()


def words(text: str) -> tuple[str, ...]:
    """Return the words of a comma-separated list.

    Raises:
        CalabashError: there are more than 64 words, or one is longer than 128 characters.
    """
    commas = text.count(",")
    found = tuple(word.strip() for word in text.split(",") if word.strip()) if commas <= 64 else ()
    if commas > 64 or len(found) > 64 or any(len(word) > 128 for word in found):
        raise CalabashError(
            f"a list of {commas + 1} words, {len(text)} characters, is too long",
            hint="at most 64 words of 128 characters",
        )
    return found


def part_of_cards(
    count: int = 1,
    *,
    memory_mib: int | None = None,
    memory_milli: int | None = None,
    core_percent: int | None = None,
    selector: Selector | None = None,
) -> GpuRequest:
    """Return the request for a part of each of ``count`` devices; ``model.compute`` gives the compute policy.

    Args:
        count: number of devices.
        memory_mib: memory of each device in MiB, or None.
        memory_milli: memory of each device in thousandths of its memory, or None.
        core_percent: compute of each device in percent, or None if the container does not state it.
        selector: the devices that are acceptable; None for all.
    """
    amounts = GpuRequest(count=count, memory_mib=memory_mib, memory_milli=memory_milli, selector=selector or Selector())
    return with_compute(amounts, core_percent=core_percent, policy=None)


def fraction_of_cards(count: int, milli: int) -> GpuRequest:
    """Return the request for the same fraction of the memory and of the compute of ``count`` devices.

    The compute is guaranteed, and the container may use idle compute above it.

    Args:
        milli: the fraction in thousandths; 1000 for whole devices.
    """
    return with_compute(
        GpuRequest(count=count, memory_milli=milli),
        core_percent=max(1, milli // 10),
        policy=ComputePolicy.FIXED if milli == 1000 else ComputePolicy.BURST,
    )
