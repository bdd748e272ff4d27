"""Runner of scenario files: executes the statements on the real scheduler and compares the results with the expectations.

``run_file`` parses a file and drives ``calabash.sched.scheduler.Scheduler`` on a virtual clock that starts at zero. It checks
every ``then``, ``why`` and ``shares`` statement. ``then`` runs one cycle, and the decisions must be exactly the expected ones,
in any order. The result lists missing and unexpected decisions by line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from calabash.model.errors import CalabashError, cause, file_reason
from calabash.model.messages import Message, in_full, joined
from calabash.scenario.reader import parse_scenario
from calabash.scenario.statements import (
    AfterLine,
    AsksLine,
    Expected,
    HasLine,
    NodesLine,
    QueueLine,
    Scenario,
    ScenarioError,
    SharesLine,
    StandsLine,
    Statement,
    ThenLine,
    VerbLine,
    WhyLine,
)
from calabash.sched.cluster.shape import NodePlacement
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Decision, Defer, Evict, Move
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sched.updates import set_mig_instances

_SHARE_TOLERANCE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """Result of a run: one step per checked statement."""

    path: str
    rule: str
    steps: tuple[CheckedStatement, ...]

    @property
    def passed(self) -> bool:
        return not any(step.differences for step in self.steps)

    def text(self) -> str:
        """Return the result for people: the decisions of every step, and the differences from the file."""
        lines = [f"rule   {self.rule}"]
        for step in self.steps:
            lines.append(f"{self.path}:{step.line}: at {step.at_s:g}s")
            lines.extend(f"       {line}" for line in step.results or ("nothing",))
            lines.extend(f"  {line}" for line in step.differences)
        lines.append("ok" if self.passed else "FAILED")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStatement:
    """Outcome of one statement that states expectations (``then``, ``why`` or ``shares``).

    Args:
        line: line number in the file.
        at_s: time on the virtual clock.
        results: results of the scheduler as text, one per line.
        differences: differences from the file: lines that begin with - (missing) or + (unexpected); () if there are
            none.
    """

    line: int
    at_s: float
    results: tuple[str, ...]
    differences: tuple[str, ...] = ()


def run_file(path: str | Path) -> ScenarioResult:
    """Parse and run a scenario file. Raises ScenarioError if it cannot be read, parsed or executed."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(
            f"{path}: cannot be read: {cause(error)}", reason=file_reason(error), hint="name a text file"
        ) from None
    return run_scenario(parse_scenario(text, path=str(path)), path=str(path))


def run_scenario(scenario: Scenario, *, path: str = "scenario") -> ScenarioResult:
    """Run a parsed scenario. Raises ScenarioError with the line if the scheduler refuses a statement."""
    run = _Run(scenario)
    for number, statement in scenario.statements:
        try:
            run.execute(number, statement)
        except ScenarioError:
            raise
        except CalabashError as error:
            raise ScenarioError(f"{path}:{number}: {error.message}", reason=error.reason, hint=error.hint) from None
    return ScenarioResult(path=path, rule=scenario.rule, steps=tuple(run.steps))


class _Run:
    """State of one run of a scenario. The scheduler is created when the first statement needs it."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now_s = 0.0
        self.steps: list[CheckedStatement] = []
        self.nodes: list[NodeSpec] = []
        self.queues: dict[str, QueueSpec] = {}
        self._scheduler: Scheduler | None = None
        self._last: dict[str, Defer] = {}

    @property
    def scheduler(self) -> Scheduler:
        if self._scheduler is None:
            queues = tuple(self.queues.values()) or (QueueSpec(name="default"),)
            self._scheduler = Scheduler(
                self.nodes,
                queues,
                policy=self.scenario.policy,
                options=self.scenario.options,
                levels=self.scenario.levels,
            )
        return self._scheduler

    def execute(self, number: int, statement: Statement) -> None:
        """Execute one statement; ``number`` is its line number."""
        match statement:
            case NodesLine():
                self._add_nodes(statement)
            case QueueLine():
                self.queues.update({spec.name: spec for spec in statement.specs})
                if self._scheduler is not None:
                    self._scheduler.set_queues(self.queues.values())
            case HasLine():
                self._adopt(statement)
            case StandsLine():
                set_mig_instances(self.scheduler, statement.node, statement.device, statement.instances)
            case AsksLine():
                self.scheduler.submit(replace(statement.request, submitted_at_s=self.now_s - statement.submitted_ago_s))
            case AfterLine():
                self.now_s += statement.seconds
                self.scheduler.advance(self.now_s)
            case VerbLine():
                for name in statement.names:
                    _VERBS[statement.verb](self.scheduler, name)
            case ThenLine():
                self._check_decisions(number, statement)
            case WhyLine():
                self._check_explanation(number, statement)
            case SharesLine():
                self._check_shares(number, statement)

    def _add_nodes(self, line: NodesLine) -> None:
        gpus = tuple(
            GpuSpec(
                model=model,
                card=card,
                memory_mib=card_memory_mib,
                island=0 if line.nvlink else -1,
                numa=2 * i // len(line.models),
                mode="mig" if line.mig else line.mode,
                geometry=geometry,
            )
            for i, (model, card_memory_mib, card, geometry) in enumerate(line.models)
        )
        for name in line.names:
            spec = NodeSpec(
                name=name,
                cpu_milli=line.cpu_milli,
                memory_mib=line.memory_mib,
                gpus=gpus,
                labels=dict(line.labels),
                taints=line.taints,
                domains=line.domains,
            )
            if self._scheduler is None:
                self.nodes.append(spec)
            else:
                self._scheduler.add_node(spec)

    def _adopt(self, statement: HasLine) -> None:
        started = self.now_s - statement.started_ago_s
        request = replace(statement.request, submitted_at_s=started)
        placement = None
        if statement.devices and (statement.places or not request.shape.mig_profile):
            placement = self._given_placement(statement)
        self.scheduler.adopt(request, node=statement.node, placement=placement, started_at_s=started)

    def _given_placement(self, statement: HasLine) -> NodePlacement:
        row = self.scheduler.cluster.row(statement.node)
        return NodePlacement(node=row, devices=statement.devices, mig_places=statement.places)

    def _check_decisions(self, number: int, statement: ThenLine) -> None:
        decisions = self.scheduler.cycle(self.now_s)
        left = list(decisions)
        missing = []
        for expected in statement.expected:
            match = next((d for d in left if _matches(expected, d)), None)
            if match is None:
                missing.append(expected)
            else:
                left.remove(match)
        differences = [f"- {_render_expected(e)}" for e in missing] + [f"+ {render(d)}" for d in left]
        results = tuple(render(d) for d in decisions)
        self.steps.append(
            CheckedStatement(line=number, at_s=self.now_s, results=results, differences=tuple(differences))
        )

    def _check_explanation(self, number: int, statement: WhyLine) -> None:
        reported = self.scheduler.explain(statement.id, self.now_s)
        causes = (Message("{nodes} nodes: {cause}", nodes=c.nodes, cause=c.text) for c in reported.causes)
        whole = in_full(joined("\n", (reported.summary, *causes, *reported.changes)))
        differences = []
        if reported.reason != statement.reason:
            differences.append(f"- reason {statement.reason}, + reason {reported.reason}")
        differences.extend(f'- "{text}"' for text in statement.texts if text not in whole)
        if statement.start_in_s is not None:
            start_in_s = None if reported.estimated_start_s is None else reported.estimated_start_s - self.now_s
            if start_in_s is None or abs(start_in_s - statement.start_in_s) > 1e-6:
                differences.append(f"- start in {statement.start_in_s:g}s, + start in {start_in_s}")
        results = (f"why {statement.id}: {reported.reason}", *(f"  {line}" for line in whole.splitlines()))
        self.steps.append(
            CheckedStatement(line=number, at_s=self.now_s, results=results, differences=tuple(differences))
        )

    def _check_shares(self, number: int, statement: SharesLine) -> None:
        tree = self.scheduler.tree
        tree.form.require_leaf(statement.queue)
        tree.advance(self.now_s)
        values = {
            "guaranteed": tree.guaranteed(statement.queue)[0] / 1000,
            "fair": tree.fair(statement.queue)[0] / 1000,
            "used": tree.used(statement.queue).gpu_milli / 1000,
            "waiting": tree.waiting(statement.queue).gpu_milli / 1000,
        }
        differences = tuple(
            f"- {key}={wanted:g}, + {key}={values[key]:g}"
            for key, wanted in statement.wanted
            if abs(values[key] - wanted) > _SHARE_TOLERANCE
        )
        results = (f"shares {statement.queue} " + " ".join(f"{key}={value:g}" for key, value in values.items()),)
        self.steps.append(CheckedStatement(line=number, at_s=self.now_s, results=results, differences=differences))


_VERBS: dict[str, Callable[[Scheduler, str], object]] = {
    "ends": Scheduler.finished,
    "cancel": Scheduler.finished,
    "cordon": Scheduler.cordon,
    "uncordon": lambda scheduler, name: scheduler.cordon(name, schedulable=True),
    "remove": Scheduler.remove_node,
}


_VERB_OF: dict[type[Decision], str] = {Bind: "bind", Move: "move", Evict: "evict", Defer: "pending"}


def render(decision: Decision) -> str:
    """Return a decision in the syntax of scenario files."""
    match decision:
        case Bind():
            return f"bind {decision.id} -> {decision.node}{_devices(decision.placement.devices)}"
        case Move():
            return f"move {decision.id} -> {decision.node}{_devices(decision.placement.devices)}"
        case Evict():
            return f"evict {decision.id} reason={decision.reason} for={decision.by}"
        case Defer():
            return f"pending {decision.id} reason={decision.reason}  # {in_full(decision.explanation.summary)}"


def _devices(devices: tuple[int, ...]) -> str:
    return ":" + "+".join(str(d) for d in devices) if devices else ""


def _render_expected(expected: Expected) -> str:
    parts = [expected.verb, expected.id]
    if expected.verb in ("bind", "move"):
        parts += ["->", (expected.node or "*") + (_devices(expected.devices) if expected.devices else "")]
    if expected.reason:
        parts.append(f"reason={expected.reason}")
    if expected.by:
        parts.append(f"for={expected.by}")
    return " ".join(parts)


def _matches(expected: Expected, decision: Decision) -> bool:
    if _VERB_OF[type(decision)] != expected.verb or decision.id != expected.id:
        return False
    match decision:
        case Bind() | Move():
            return expected.node in ("", decision.node) and expected.devices in (None, decision.placement.devices)
        case Evict():
            return expected.reason in ("", decision.reason) and expected.by in ("", decision.by)
        case Defer():
            return expected.reason in ("", decision.reason)
