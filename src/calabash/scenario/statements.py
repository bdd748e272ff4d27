"""Statements of scenario files, one class per keyword."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.errors import CalabashError
from calabash.model.mig import MigGeometry, MigInstance, MigPlace
from calabash.sched.decisions import Options, Request
from calabash.sched.queues.spec import QueueSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesLine:
    """Add equal nodes (``nodes``).

    Args:
        names: names of the nodes.
        models: for each device of a node: model, memory in MiB, physical card or "", MIG geometry or None.
        nvlink: the devices are connected by NVLink. mig: the devices are in mode mig.
        mode: sharing mode to which the devices are pinned; "" for none.
        domains: domains of the network to which the nodes belong, outermost first.
    """

    names: tuple[str, ...]
    models: tuple[tuple[str, int, str, MigGeometry | None], ...]
    cpu_milli: int = 1_000_000
    memory_mib: int = 4 << 20
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[str, ...] = ()
    nvlink: bool = False
    mig: bool = False
    mode: str = ""
    domains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HasLine:
    """Add a running request (``has``).

    Args:
        started_ago_s: time for which it has run.
        node: name of its node; "" lets the scheduler choose.
        devices: numbers of its devices on the node; () lets the scheduler choose.
        places: its MIG positions on each device; () lets the scheduler choose.
    """

    request: Request
    started_ago_s: float = 0.0
    node: str = ""
    devices: tuple[int, ...] = ()
    places: tuple[tuple[MigPlace, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandsLine:
    """Set the MIG instances that exist on a device, used or not (``stands``)."""

    node: str
    device: int
    instances: tuple[MigInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AsksLine:
    """Submit a request (``asks``)."""

    request: Request
    submitted_ago_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterLine:
    """Advance the virtual clock (``after``)."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbLine:
    """Report an event of requests or nodes to the scheduler.

    Args:
        verb: ``ends`` or ``cancel`` for requests; ``cordon``, ``uncordon`` or ``remove`` for nodes.
        names: IDs of the requests, or names of the nodes.
    """

    verb: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """Define queues, or change existing ones (``queues``)."""

    specs: tuple[QueueSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One expected decision; empty fields match anything.

    Args:
        verb: kind of the decision: ``bind``, ``move``, ``evict`` or ``pending``.
        id: ID of the request.
        by: ID of the request for which another one is evicted or moved.
    """

    verb: str
    id: str
    node: str = ""
    devices: tuple[int, ...] | None = None
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThenLine:
    """Run one scheduling cycle and expect exactly these decisions, in any order (``then``)."""

    expected: tuple[Expected, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyLine:
    """Expect the explanation of a waiting request to have a reason code and to contain texts (``why``).

    Args:
        id: ID of the request.
        texts: texts that the explanation must contain.
        start_in_s: expected time from now to the estimated start; None: not checked.
    """

    id: str
    reason: str
    texts: tuple[str, ...]
    start_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesLine:
    """Expect the current shares of a queue (``shares``).

    Args:
        wanted: pairs of a kind of share, such as ``fair``, and its expected number of devices.
    """

    queue: str
    wanted: tuple[tuple[str, float], ...]


Statement = (
    NodesLine | StandsLine | HasLine | AsksLine | AfterLine | VerbLine | QueueLine | ThenLine | WhyLine | SharesLine
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Parsed scenario file. ``statements`` are pairs of line number and statement, in order; ``levels`` of the network."""

    rule: str
    options: Options
    policy: str
    levels: tuple[str, ...] = ()
    statements: tuple[tuple[int, Statement], ...] = ()


class ScenarioError(CalabashError):
    """Error in a scenario file: ``file:line: message`` and a hint."""
