"""What a dialect is, and what its module is given to look at."""

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
    """Where a system lets its administrator choose a unit: MiB in one ``aliyun.com/gpu-mem``, ``nvidia.com/mps-memory``,
    ``volcano.sh/vgpu-memory``."""

    aliyun_memory_mib: int = 1024
    alauda_memory_mib: int = 1024
    volcano_memory_mib: int = 1


DEFAULT_SETTINGS = DialectSettings()
SAID_CHARACTERS_MAX = 64 * 130  # a list of words at its longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One container that may ask for devices: its amounts by resource name, and the pod that it belongs to."""

    pod: AskingPod
    container: str
    amounts: Mapping[str, Fraction]
    settings: DialectSettings = DEFAULT_SETTINGS

    def has(self, name: str) -> bool:
        """Whether it asks for more than nothing of that name."""
        return self.amounts.get(name, Fraction(0)) != 0

    def count(self, name: str) -> int:
        """A whole number; 0 when it does not ask for it. Raises CalabashError."""
        return whole(self.amounts.get(name, Fraction(0)), what=name)

    def percent(self, name: str) -> int | None:
        """1 to 100; None when it does not ask for it. Raises CalabashError."""
        value = self.count(name)
        if value > 100:
            raise CalabashError(f"{name} {value} is out of range", hint="1 to 100 percent of one device")
        return value or None

    def annotation(self, *names: str) -> str:
        """The first of these annotations that the pod has. Raises CalabashError when it is too long to be looked at."""
        return next((text for name in names if (text := said(self.pod, name))), "")


def _never(asking: Asking) -> bool:
    del asking
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One system's words.

    Args:
        name: what the annotation ``calabash.dev/dialect`` says.
        system: whose words they are, for people.
        resources: resource names with their meaning.
        annotations: annotations and labels of the pod with their meaning.
        request: what the container asks for; it is called only where the dialect claims the container.
        asked_by: annotations of the pod that ask for devices by themselves.
        queues: labels or annotations of the pod that name its queue there.
        schedulers: schedulers of that system; pods that name one mean whoever gives out devices.
        order: who is asked first whether a container speaks its words; for dialects that share a resource name.
        marks: resource names of which one is enough to claim a container; empty stands for all of ``resources``.
        prefix: resource names that begin so belong to it as well.
        also: claims a container besides, or in spite of, its resource names.
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
        """Whether the resource name is one of its own."""
        return resource in self.resources or bool(self.prefix and resource.startswith(self.prefix))

    def claims(self, asking: Asking) -> bool:
        """Whether the container asks in its words."""
        for name, amount in asking.amounts.items():
            marked = name in self.marks if self.marks else self.names(name)
            if amount and (marked or (self.prefix and name.startswith(self.prefix))):
                return True
        return self.also(asking)


def said(pod: AskingPod, name: str) -> str:
    """An annotation without the space around it, "" when there is none. Raises CalabashError when it is too long: whoever
    writes pods decides how often it is looked at."""
    text = pod.annotations.get(name, "")
    if len(text) > SAID_CHARACTERS_MAX:
        raise CalabashError(f"{name} has {len(text)} characters", hint=f"at most {SAID_CHARACTERS_MAX}")
    return text.strip()


def words(text: str) -> tuple[str, ...]:
    """The words of a list with commas. Raises CalabashError for more than 64 or longer ones than 128 characters."""
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
    """Return the request for parts of ``count`` devices, by the rule of ``model.compute``."""
    amounts = GpuRequest(count=count, memory_mib=memory_mib, memory_milli=memory_milli, selector=selector or Selector())
    return with_compute(amounts, core_percent=core_percent, policy=None)


def fraction_of_cards(count: int, milli: int) -> GpuRequest:
    """The same fraction of memory and of compute, where the system shares compute by need: guaranteed, idle time lent."""
    return with_compute(
        GpuRequest(count=count, memory_milli=milli),
        core_percent=max(1, milli // 10),
        policy=ComputePolicy.FIXED if milli == 1000 else ComputePolicy.BURST,
    )
