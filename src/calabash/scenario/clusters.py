"""Parsers of the cluster statements in scenario files: options, nodes with their devices, and queues."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from calabash.model.units import parse_memory_mib, parse_seconds
from calabash.scenario.parsing import (
    ScenarioReader,
    check_names,
    expand,
    milli_of,
    number_of,
)
from calabash.scenario.statements import (
    NodesLine,
    QueueLine,
)
from calabash.scenario.topology import read_path
from calabash.sched.amounts import ZERO, Amount
from calabash.sched.cluster.shape import WHOLE_MILLI
from calabash.sched.queues.spec import UNLIMITED, QueueSpec

CARD_MEMORY_MIB = {
    "V100": 32768, "P40": 24576, "P100": 16384, "T4": 16384, "A10": 24576, "A30": 24576, "A100": 40960,
    "A100-40GB": 40960, "A100-80GB": 81920, "H100": 81920, "H200": 144384, "B200": 184320,
    "GH200": 98304, "GB200": 190464,
}  # fmt: skip
_NODE_CARDS = re.compile(r"^(?P<count>\d+) x (?P<model>\S+)(?: cut (?P<geometry>\S+))?(?: is (?P<card>\S+))?$")
DEVICES_MAX = 64


def read_options(reader: ScenarioReader, rest: str) -> None:
    for word in rest.split():
        key, equals, value = word.partition("=")
        if not equals:
            raise reader.fail(f"option {word!r} has no value", hint="write option=value")
        if key == "policy":
            reader.policy = value
            continue
        if key not in OPTION_READERS:
            raise reader.fail(f"option {key!r} is unknown", hint=f"use one of: policy, {', '.join(OPTION_READERS)}")
        name, read = OPTION_READERS[key]
        try:
            reader.options = replace(reader.options, **{name: read(value)})
        except (ValueError, KeyError):
            raise reader.fail(f"option {key} has the invalid value {value!r}") from None


_ON_OFF = {"on": True, "off": False}.__getitem__
OPTION_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "half_life": ("half_life_s", parse_seconds),
    "min_run_time": ("min_run_time_s", parse_seconds),
    "default_run_time": ("default_run_time_s", parse_seconds),
    "reclaim": ("reclaim", _ON_OFF),
    "reclaim_fair_share": ("reclaim_fair_share", _ON_OFF),
    "preempt": ("preempt", _ON_OFF),
    "evict_ratio_max": ("evict_ratio_max", float),
    "reservations": ("reservations", int),
    "reservation_hold": ("reservation_hold_s", parse_seconds),
    "reservation_pause": ("reservation_pause_s", parse_seconds),
    "moves": ("defragment_moves_max", int),
    "move_after": ("defragment_wait_s", parse_seconds),
    "move_rest": ("defragment_rest_s", parse_seconds),
    "move_gpus_max": ("defragment_cost_max_milli", lambda v: int(float(v) * WHOLE_MILLI)),
}


def read_nodes(reader: ScenarioReader, rest: str) -> None:
    head, colon, body = rest.partition(":")
    if not colon:
        raise reader.fail("no colon after the names of the nodes", hint="write it like nodes gpu-[1-2]: 8 x H200")
    names = tuple(itertools.chain.from_iterable(expand(word) for word in head.replace(",", " ").split()))
    check_names(reader, names)
    line = NodesLine(names=names, models=())
    for clause in (c.strip() for c in body.split(",")):
        line = _node_clause(reader, line, clause)
    reader.add(line)


def _node_clause(reader: ScenarioReader, line: NodesLine, clause: str) -> NodesLine:  # noqa: PLR0911  one per clause
    words = clause.split()
    flags = {"nvlink", "mig"}
    while words and words[-1] in flags:
        flag = words.pop()
        line = replace(line, nvlink=True) if flag == "nvlink" else replace(line, mig=True)
    clause = " ".join(words)
    if not words:
        return line
    if match := _NODE_CARDS.match(clause):
        geometry = match["geometry"]
        if geometry and geometry not in reader.geometries:
            raise reader.fail(f"geometry {geometry!r} is unknown", hint="define it before: geometry NAME: ...")
        card = (*_card(reader, match["model"]), match["card"] or "", reader.geometries[geometry] if geometry else None)
        return replace(line, models=line.models + (card,) * _count(reader, match["count"]))
    match words:
        case [number, "cpu"]:
            return replace(line, cpu_milli=milli_of(reader, number))
        case [size, "memory"]:
            return replace(line, memory_mib=parse_memory_mib(size))
        case ["label", pair] if "=" in pair:
            key, _, value = pair.partition("=")
            return replace(line, labels=(*line.labels, (key, value)))
        case ["taint", taint]:
            return replace(line, taints=(*line.taints, taint))
        case ["topology", path]:
            return replace(line, domains=read_path(reader, path))
        case ["mode", mode]:
            return replace(line, mode=mode)
    raise reader.fail(
        f"{clause!r} is not a property of a node",
        hint="write 8 x H200 nvlink, 96 cpu, 1TiB memory, label k=v, taint k=v:NoSchedule, topology b1/r1, or mode vgpu",
    )


def _card(reader: ScenarioReader, text: str) -> tuple[str, int]:
    """Parse a device model and return it with its memory in MiB.

    The text is a model of CARD_MEMORY_MIB, or ``NAME@MEMORY``; ``@0`` means that memory is not tracked.
    """
    model, at, size = text.partition("@")
    if at:
        return model, 0 if size == "0" else parse_memory_mib(size)
    if model not in CARD_MEMORY_MIB:
        raise reader.fail(
            f"card {model!r} is unknown", hint=f"write {model}@MEMORY, or one of: {', '.join(CARD_MEMORY_MIB)}"
        )
    return model, CARD_MEMORY_MIB[model]


def _count(reader: ScenarioReader, text: str) -> int:
    if not 1 <= int(text) <= DEVICES_MAX:
        raise reader.fail(f"{text} devices on a node is out of range", hint=f"write 1 to {DEVICES_MAX}")
    return int(text)


def read_queues(reader: ScenarioReader, rest: str) -> None:
    specs = []
    for part in rest.split("|"):
        words = part.split()
        if not words:
            raise reader.fail(
                "a queue has no name", hint="write it like queues research deserved=8 limit=16 | prod deserved=8"
            )
        specs.append(_queue(reader, words[0], words[1:]))
    reader.add(QueueLine(specs=tuple(specs)))


def _queue(reader: ScenarioReader, name: str, words: list[str]) -> QueueSpec:
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
                weight = number_of(reader, value)
            case _:
                raise reader.fail(
                    f"queue setting {word!r} is unknown",
                    hint="use deserved=, limit= (devices; also deserved_cpu=, limit_memory= ...), weight= or parent=",
                )
    return QueueSpec(name=name, parent=parent, deserved=deserved, limit=limit, over_quota_weight=weight)


def _with_amount(reader: ScenarioReader, amount: Amount, key: str, value: str) -> Amount:
    if key.endswith("_cpu"):
        return amount._replace(cpu_milli=milli_of(reader, value))
    if key.endswith("_memory"):
        return amount._replace(host_memory_mib=parse_memory_mib(value))
    return amount._replace(gpu_milli=milli_of(reader, value))
