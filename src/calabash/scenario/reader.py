"""Reader of scenario files: a small text in, frozen statements out, and strict errors ``file:line: what``.

A line opens with a keyword in its first column; indented lines continue it; ``#`` starts a comment. The format is
described in ``docs/reference/scenario-format.md``. Nothing is guessed: a word that is not understood is an error with
a hint, and nothing is executed here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from calabash.model.errors import CalabashError, Reason
from calabash.model.units import parse_duration_s, parse_memory_mib
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
    Statement,
    ThenLine,
    VerbLine,
    WhyLine,
)
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape, Topology
from calabash.sched.decisions import Options, Request
from calabash.sched.queues.fairshare import ZERO, Amount
from calabash.sched.queues.spec import UNLIMITED, QueueSpec
from calabash.sched.scheduler import DEFAULT_POLICY

CARD_MEMORY_MIB = {
    "V100": 32768, "P40": 24576, "P100": 16384, "T4": 16384, "A10": 24576, "A30": 24576, "A100": 40960,
    "A100-40GB": 40960, "A100-80GB": 81920, "H100": 81920, "H200": 144384, "B200": 184320,
}  # fmt: skip
_RANGE = re.compile(r"^(?P<head>[^\[\]]*)\[(?P<items>[0-9,\-]+)\](?P<tail>[^\[\]]*)$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")
_MIG = re.compile(r"^\d+g\.\d+gb(\+me)?$")
_NODE_CARDS = re.compile(r"^(?P<count>\d+) x (?P<model>\S+)(?: is (?P<card>\S+))?$")
_QUOTED = re.compile(r'"([^"]*)"')
_EXPANSION_MAX = 100_000
DEVICES_MAX = 64


@dataclass(slots=True)
class _Reader:
    path: str
    number: int = 0
    fresh: bool = True
    rule: str = ""
    policy: str = DEFAULT_POLICY
    options: Options = field(default_factory=Options)
    statements: list[tuple[int, Statement]] = field(default_factory=list)

    def fail(self, what: str, hint: str = "") -> ScenarioError:
        return ScenarioError(f"{self.path}:{self.number}: {what}", reason=Reason.BAD_FILE, hint=hint)

    def add(self, statement: Statement) -> None:
        self.statements.append((self.number, statement))


def parse_scenario(text: str, *, path: str = "scenario") -> Scenario:
    """Read a whole file. Raises ScenarioError."""
    reader = _Reader(path=path)
    keyword = ""
    for number, raw in enumerate(text.splitlines(), 1):
        reader.number = number
        line = _uncommented(raw)
        if not line.strip():
            continue
        if not line[0].isspace():
            keyword, _, rest = line.partition(" ")
            if keyword not in _READERS:
                raise reader.fail(f"{keyword!r} is no keyword", hint=f"one of: {', '.join(_READERS)}")
            reader.fresh = True
        else:
            if not keyword:
                raise reader.fail("the first line is indented", hint="open with a keyword: rule ...")
            rest, reader.fresh = line, False
        try:
            _READERS[keyword](reader, rest.strip())
        except ScenarioError:
            raise
        except CalabashError as error:
            raise reader.fail(error.message, hint=error.hint) from None
    if not reader.rule:
        raise reader.fail("no rule", hint="say in one line what the file proves: rule ...")
    if not any(isinstance(s, ThenLine | WhyLine | SharesLine) for _, s in reader.statements):
        raise reader.fail("nothing is expected", hint="add a then, why or shares line")
    return Scenario(rule=reader.rule, options=reader.options, policy=reader.policy, statements=tuple(reader.statements))


def expand(text: str) -> tuple[str, ...]:
    """``gpu-[1-2]`` -> gpu-1, gpu-2; ``a[0,3-4]`` -> a0, a3, a4. Raises CalabashError."""
    match = _RANGE.match(text)
    if match is None:
        if "[" in text or "]" in text:
            raise CalabashError(f"range in {text!r} is not understood", hint="write name[0-3] or name[0,2]")
        return (text,)
    numbers: list[int] = []
    for item in match["items"].split(","):
        low, dash, high = item.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise CalabashError(f"range in {text!r} is not understood", hint="write name[0-3] or name[0,2]")
        first, last = int(low), int(high or low)
        if last < first or last - first >= _EXPANSION_MAX:
            raise CalabashError(f"range {first}-{last} in {text!r} is empty or too long", hint="count upwards")
        numbers.extend(range(first, last + 1))
    return tuple(f"{match['head']}{n}{match['tail']}" for n in numbers)


def _uncommented(line: str) -> str:
    quoted = False
    for i, c in enumerate(line):
        if c == '"':
            quoted = not quoted
        elif c == "#" and not quoted:
            return line[:i].rstrip()
    return line.rstrip()


# ---- keywords -----------------------------------------------------------------------------------------------------


def _read_rule(reader: _Reader, rest: str) -> None:
    if reader.fresh and reader.rule:
        raise reader.fail("a second rule", hint="one file proves one rule")
    if not rest:
        raise reader.fail("an empty rule", hint="say what the file proves")
    reader.rule = f"{reader.rule} {rest}".strip()


def _read_options(reader: _Reader, rest: str) -> None:
    for word in rest.split():
        key, equals, value = word.partition("=")
        if not equals:
            raise reader.fail(f"option {word!r} has no value", hint="write option=value")
        if key == "policy":
            reader.policy = value
            continue
        if key not in OPTION_READERS:
            raise reader.fail(f"option {key!r} is unknown", hint=f"one of: policy, {', '.join(OPTION_READERS)}")
        name, read = OPTION_READERS[key]
        try:
            reader.options = replace(reader.options, **{name: read(value)})
        except (ValueError, KeyError):
            raise reader.fail(f"option {key}={value} is not understood") from None


_ON_OFF = {"on": True, "off": False}.__getitem__
OPTION_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "half_life": ("half_life_s", parse_duration_s),
    "min_run_time": ("min_run_time_s", parse_duration_s),
    "default_run_time": ("default_run_time_s", parse_duration_s),
    "reclaim": ("reclaim", _ON_OFF),
    "reclaim_fair_share": ("reclaim_fair_share", _ON_OFF),
    "preempt": ("preempt", _ON_OFF),
    "evict_ratio_max": ("evict_ratio_max", float),
    "reservations": ("reservations", int),
    "reservation_hold": ("reservation_hold_s", parse_duration_s),
    "reservation_pause": ("reservation_pause_s", parse_duration_s),
    "moves": ("defragment_moves_max", int),
    "move_gpus_max": ("defragment_cost_max_milli", lambda v: int(float(v) * WHOLE_MILLI)),
}


def _read_nodes(reader: _Reader, rest: str) -> None:
    head, colon, body = rest.partition(":")
    if not colon:
        raise reader.fail("no colon after the names of the nodes", hint="nodes gpu-[1-2]: 8 x H200")
    names = tuple(itertools.chain.from_iterable(expand(word) for word in head.replace(",", " ").split()))
    _check_names(reader, names)
    line = NodesLine(names=names, models=())
    for clause in (c.strip() for c in body.split(",")):
        line = _node_clause(reader, line, clause)
    reader.add(line)


def _node_clause(reader: _Reader, line: NodesLine, clause: str) -> NodesLine:  # noqa: PLR0911  one per clause
    words = clause.split()
    flags = {"nvlink", "mig"}
    while words and words[-1] in flags:
        flag = words.pop()
        line = replace(line, nvlink=True) if flag == "nvlink" else replace(line, mig=True)
    clause = " ".join(words)
    if not words:
        return line
    if match := _NODE_CARDS.match(clause):
        card = (*_card(reader, match["model"]), match["card"] or "")
        return replace(line, models=line.models + (card,) * _count(reader, match["count"]))
    match words:
        case [number, "cpu"]:
            return replace(line, cpu_milli=_milli(reader, number))
        case [size, "memory"]:
            return replace(line, memory_mib=parse_memory_mib(size))
        case ["label", pair] if "=" in pair:
            key, _, value = pair.partition("=")
            return replace(line, labels=(*line.labels, (key, value)))
        case ["taint", taint]:
            return replace(line, taints=(*line.taints, taint))
        case ["mode", mode]:
            return replace(line, mode=mode)
    raise reader.fail(
        f"{clause!r} says nothing about a node",
        hint="8 x H200 nvlink, 96 cpu, 1TiB memory, label k=v, taint k=v:NoSchedule, mode vgpu",
    )


def _card(reader: _Reader, text: str) -> tuple[str, int]:
    """``T4``, or ``name@MEMORY`` for a card that is not in the table (``@0``: memory is not tracked)."""
    model, at, size = text.partition("@")
    if at:
        return model, int(size) if size.isdigit() else parse_memory_mib(size)
    if model not in CARD_MEMORY_MIB:
        raise reader.fail(
            f"card {model!r} is unknown", hint=f"write {model}@MEMORY, or one of: {', '.join(CARD_MEMORY_MIB)}"
        )
    return model, CARD_MEMORY_MIB[model]


def _count(reader: _Reader, text: str) -> int:
    if not 1 <= int(text) <= DEVICES_MAX:
        raise reader.fail(f"{text} devices on a node", hint=f"1 to {DEVICES_MAX}")
    return int(text)


def _read_queues(reader: _Reader, rest: str) -> None:
    specs = []
    for part in rest.split("|"):
        words = part.split()
        if not words:
            raise reader.fail("an empty queue", hint="queues research deserved=8 limit=16 | prod deserved=8")
        specs.append(_queue(reader, words[0], words[1:]))
    reader.add(QueueLine(specs=tuple(specs)))


def _queue(reader: _Reader, name: str, words: list[str]) -> QueueSpec:
    deserved, limit, parent, weight = ZERO, UNLIMITED, "", 1.0
    for word in words:
        key, _, value = word.partition("=")
        match key:
            case "deserved" | "deserved_cpu" | "deserved_memory":
                deserved = _with_amount(reader, deserved, key, value)
            case "limit" | "limit_cpu" | "limit_memory":
                limit = _with_amount(reader, limit, key, value)
            case "parent":
                parent = value
            case "weight":
                weight = _number(reader, value)
            case _:
                raise reader.fail(
                    f"queue setting {word!r} is unknown",
                    hint="deserved=, limit= (devices), _cpu, _memory variants, weight=, parent=",
                )
    return QueueSpec(name=name, parent=parent, deserved=deserved, limit=limit, over_quota_weight=weight)


def _with_amount(reader: _Reader, amount: Amount, key: str, value: str) -> Amount:
    if key.endswith("_cpu"):
        return amount._replace(cpu_milli=_milli(reader, value))
    if key.endswith("_memory"):
        return amount._replace(host_memory_mib=parse_memory_mib(value))
    return amount._replace(gpu_milli=_milli(reader, value))


def _read_has(reader: _Reader, rest: str) -> None:
    requests, extras = _requests(reader, rest)
    started = extras.get("started", ["0"])
    places = extras.get("on", [""])
    for i, request in enumerate(requests):
        ago_s = parse_duration_s(started[i % len(started)])
        node, _, devices = places[i % len(places)].partition(":")
        reader.add(
            HasLine(
                request=request, started_ago_s=ago_s, node=node, devices=_devices(reader, devices) if devices else ()
            )
        )


def _read_asks(reader: _Reader, rest: str) -> None:
    requests, extras = _requests(reader, rest)
    if "started" in extras or "on" in extras:
        raise reader.fail("who asks has not started and is nowhere", hint="use has for what runs already")
    submitted = extras.get("submitted", ["0"])
    for i, request in enumerate(requests):
        reader.add(AsksLine(request=request, submitted_ago_s=parse_duration_s(submitted[i % len(submitted)])))


def _requests(reader: _Reader, rest: str) -> tuple[list[Request], dict[str, list[str]]]:
    """``queue/name: amount, clause, ...`` -> the asks, and what only the keyword understands."""
    head, colon, body = rest.partition(":")
    queue, slash, base = head.strip().partition("/")
    if not colon or not slash:
        raise reader.fail("no queue/name: in front", hint="asks prod/serve: 4 x 1 gpu, gang")
    clauses = [c.strip() for c in body.split(",") if c.strip()]
    if not clauses:
        raise reader.fail("nothing is asked for", hint="asks prod/serve: 1 gpu")
    copies, amount = 0, clauses[0]
    if match := re.match(r"^(\d+) x (.*)$", amount):
        copies, amount = int(match[1]), match[2]
    names = expand(base)
    if copies:
        if len(names) > 1 or "[" in base or copies > _EXPANSION_MAX:
            raise reader.fail("a range of names and a number of copies", hint="use one of the two")
        names = tuple(f"{base}{i}" for i in range(copies))
    _check_names(reader, (queue, *names))
    fields = _amount(reader, amount)
    settings: dict[str, object] = {}
    extras: dict[str, list[str]] = {}
    for clause in clauses[1:]:
        _ask_clause(reader, clause, fields, settings, extras, base=base.partition("[")[0], members=len(names))
    shape = Shape(**fields)  # type: ignore[arg-type]
    return [Request(id=f"{queue}/{name}", queue=queue, shape=shape, **settings) for name in names], extras  # type: ignore[arg-type]


def _amount(reader: _Reader, text: str) -> dict[str, object]:
    """``0.5 gpu 8GiB of A100|H100`` -> fields of a shape."""
    fields: dict[str, object] = {}
    words = text.split()
    i = 0
    while i < len(words):
        word, following = words[i], words[i + 1] if i + 1 < len(words) else ""
        if following in ("gpu", "gpus"):
            devices = _number(reader, word)
            if devices >= 1 and devices != int(devices):
                raise reader.fail(f"{word} gpu is neither whole devices nor a part of one", hint="0.5 gpu, 2 gpu")
            fields["gpu_count"] = max(1, int(devices))
            fields["gpu_milli"] = WHOLE_MILLI if devices >= 1 else round(devices * WHOLE_MILLI)
            i += 2
        elif following == "cpu":
            fields["cpu_milli"] = _milli(reader, word)
            i += 2
        elif word == "of":
            fields["models"] = frozenset(following.split("|"))
            i += 2
        elif word == "each":
            i += 1
        elif _MIG.match(word):
            fields.update(mig_profile=word, gpu_count=1)
            i += 1
        else:
            fields["gpu_memory_mib"] = parse_memory_mib(word)
            fields.setdefault("gpu_count", 1)
            i += 1
    return fields


def _ask_clause(  # noqa: C901, PLR0912  one case per clause
    reader: _Reader,
    clause: str,
    fields: dict[str, object],
    settings: dict[str, object],
    extras: dict[str, list[str]],
    *,
    base: str,
    members: int,
) -> None:
    words = clause.split()
    match words:
        case ["gang"]:
            settings.update(gang=base, min_member=members)
        case ["gang", "named", name, "min", number]:
            settings.update(gang=name, min_member=int(_number(reader, number)))
        case ["gang", "min", number]:
            settings.update(gang=base, min_member=int(_number(reader, number)))
        case ["priority", number]:
            settings["priority"] = int(_number(reader, number))
        case ["runs", duration]:
            settings["run_time_s"] = parse_duration_s(duration)
        case ["pinned"]:
            settings["movable"] = False
        case ["unevictable"]:
            settings["evictable"] = False
        case ["tenant" | "owner" as key, name]:
            settings[key] = name
        case ["started" | "submitted" as key, *rest, "ago"]:
            extras[key] = [part.strip() for part in " ".join(rest).split("/")]
        case ["on", *rest]:
            extras["on"] = [part.strip() for part in " ".join(rest).split("/")]
        case ["cpu", number]:
            fields["cpu_milli"] = _milli(reader, number)
        case ["memory", size]:
            fields["memory_mib"] = parse_memory_mib(size)
        case ["devices", number]:
            fields["gpu_count"] = int(_number(reader, number))
        case ["select", *rest]:
            fields["selector"] = (*_strings(fields, "selector"), " ".join(rest))
        case ["tolerates", taint]:
            fields["tolerations"] = frozenset((*_strings(fields, "tolerations"), taint))
        case ["card", bounds]:
            low, _, high = bounds.partition("..")
            fields["card_memory_mib_min"] = parse_memory_mib(low) if low else 0
            fields["card_memory_mib_max"] = parse_memory_mib(high) if high else 0
        case ["nvlink" | "numa" as wish, *rest] if rest in ([], ["required"]):
            fields["topology"] = Topology(wish)
            fields["topology_required"] = bool(rest)
        case ["mode", mode]:
            fields["mode"] = mode
        case _:
            raise reader.fail(
                f"{clause!r} is not understood",
                hint="gang [min N], priority N, runs 1h, cpu N, memory 8GiB, select k=v, tolerates k, pinned, ...",
            )


def _read_then(reader: _Reader, rest: str) -> None:
    expected = [] if rest == "nothing" else _expected(reader, rest)
    if not reader.fresh and reader.statements and isinstance(reader.statements[-1][1], ThenLine):
        number, last = reader.statements.pop()
        assert isinstance(last, ThenLine)
        reader.statements.append((number, ThenLine(expected=(*last.expected, *expected))))
        return
    reader.add(ThenLine(expected=tuple(expected)))


def _expected(reader: _Reader, text: str) -> list[Expected]:
    words = text.split()
    match words:
        case ["bind" | "move" as verb, ids, "->", place]:
            node, _, devices = place.partition(":")
            wanted = _devices(reader, devices) if devices else None
            return [Expected(verb=verb, id=i, node="" if node == "*" else node, devices=wanted) for i in expand(ids)]
        case ["evict" | "pending" as verb, ids, *settings]:
            reason, by = "", ""
            for word in settings:
                key, _, value = word.partition("=")
                if key == "reason" and value in {r.value for r in Reason}:
                    reason = value
                elif key == "for" and verb == "evict":
                    by = value
                else:
                    raise reader.fail(f"{word!r} is not understood", hint="reason=CODE (a known one), for=ID")
            return [Expected(verb=verb, id=i, reason=reason, by=by) for i in expand(ids)]
    raise reader.fail(
        f"{text!r} is no decision",
        hint="bind ID -> NODE, evict ID reason=CODE, move ID -> NODE, pending ID reason=CODE, nothing",
    )


def _read_why(reader: _Reader, rest: str) -> None:
    head, colon, body = rest.partition(":")
    words = _QUOTED.sub("", body).split()
    if not colon or not words or words[0] not in {r.value for r in Reason}:
        raise reader.fail(f"{rest!r} is no expectation", hint='why prod/a: no_capacity "1 nodes: largest free"')
    start: float | None = None
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key != "start":
            raise reader.fail(f"{word!r} is not understood", hint="start=30m, or words in quotes")
        start = parse_duration_s(value)
    reader.add(WhyLine(id=head.strip(), reason=words[0], texts=tuple(_QUOTED.findall(body)), start_in_s=start))


def _read_shares(reader: _Reader, rest: str) -> None:
    words = rest.split()
    wanted = []
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key not in ("guaranteed", "fair", "used", "waiting"):
            raise reader.fail(f"{word!r} is not understood", hint="shares QUEUE guaranteed=4 fair=6 used=3 waiting=1")
        wanted.append((key, _number(reader, value)))
    if not wanted:
        raise reader.fail("no share is expected", hint="shares QUEUE guaranteed=4 fair=6")
    reader.add(SharesLine(queue=words[0], wanted=tuple(wanted)))


def _read_after(reader: _Reader, rest: str) -> None:
    reader.add(AfterLine(seconds=parse_duration_s(rest)))


def _verb(verb: str) -> Callable[[_Reader, str], None]:
    def read(reader: _Reader, rest: str) -> None:
        names = tuple(itertools.chain.from_iterable(expand(word) for word in rest.replace(",", " ").split()))
        if not names:
            raise reader.fail(f"{verb} what?", hint=f"{verb} NAME")
        reader.add(VerbLine(verb=verb, names=names))

    return read


_READERS = {
    "rule": _read_rule,
    "options": _read_options,
    "nodes": _read_nodes,
    "queues": _read_queues,
    "has": _read_has,
    "asks": _read_asks,
    "after": _read_after,
    "ends": _verb("ends"),
    "cancel": _verb("cancel"),
    "cordon": _verb("cordon"),
    "uncordon": _verb("uncordon"),
    "remove": _verb("remove"),
    "then": _read_then,
    "why": _read_why,
    "shares": _read_shares,
}


# ---- words --------------------------------------------------------------------------------------------------------


def _strings(fields: dict[str, object], key: str) -> tuple[str, ...]:
    value = fields.get(key, ())
    return tuple(value) if isinstance(value, tuple | frozenset) else ()


def _number(reader: _Reader, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise reader.fail(f"{text!r} is not a number") from None
    if not 0 <= value <= 1e9:
        raise reader.fail(f"{text} is out of range", hint="0 to 1000000000")
    return value


def _milli(reader: _Reader, text: str) -> int:
    return round(_number(reader, text) * 1000)


def _devices(reader: _Reader, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split("+"))
    except ValueError:
        raise reader.fail(f"devices {text!r} are not understood", hint="write node:0+1") from None


def _check_names(reader: _Reader, names: tuple[str, ...]) -> None:
    for name in names:
        if not _NAME.match(name):
            raise reader.fail(f"name {name!r} is not usable", hint="letters, digits, dot, dash, underscore")
