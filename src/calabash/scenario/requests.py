"""Parsers of the requests in scenario files: running requests (``has``) and waiting requests (``asks``)."""

from __future__ import annotations

import re
from dataclasses import replace

from calabash.model.units import parse_memory_mib, parse_seconds
from calabash.scenario.mig import is_amount, places_of
from calabash.scenario.parsing import (
    EXPANSION_MAX,
    ScenarioReader,
    check_names,
    devices_of,
    expand,
    milli_of,
    number_of,
    strings,
)
from calabash.scenario.statements import (
    AsksLine,
    HasLine,
)
from calabash.scenario.topology import read_topology
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape, Topology
from calabash.sched.decisions import Request


def read_has(reader: ScenarioReader, rest: str) -> None:
    requests, extras = _requests(reader, rest)
    started = extras.get("started", ["0"])
    places = extras.get("on", [""])
    for i, request in enumerate(requests):
        ago_s = parse_seconds(started[i % len(started)])
        node, _, devices = places[i % len(places)].partition(":")
        reader.add(
            HasLine(
                request=request,
                started_ago_s=ago_s,
                node=node,
                devices=devices_of(reader, devices) if devices else (),
                places=places_of(reader, devices),
            )
        )


def read_asks(reader: ScenarioReader, rest: str) -> None:
    requests, extras = _requests(reader, rest)
    if "started" in extras or "on" in extras:
        raise reader.fail("a waiting request has no start time and no node", hint="use has for a running request")
    submitted = extras.get("submitted", ["0"])
    for i, request in enumerate(requests):
        reader.add(AsksLine(request=request, submitted_ago_s=parse_seconds(submitted[i % len(submitted)])))


def _requests(reader: ScenarioReader, rest: str) -> tuple[list[Request], dict[str, list[str]]]:
    """Parse the requests of a statement: ``queue/name: amount, clause, ...``.

    Returns:
        The requests, and the values of the clauses ``started``, ``submitted`` and ``on`` by name. A clause has one
        value for all requests or one for each of them.
    """
    head, colon, body = rest.partition(":")
    queue, slash, base = head.strip().partition("/")
    if not colon or not slash:
        raise reader.fail("no queue/name: before the amount", hint="write it like asks prod/serve: 4 x 1 gpu, gang")
    clauses = [c.strip() for c in body.split(",") if c.strip()]
    if not clauses:
        raise reader.fail("the request has no amount", hint="write it like asks prod/serve: 1 gpu")
    copies, amount = 0, clauses[0]
    if match := re.match(r"^(\d+) x (.*)$", amount):
        copies, amount = int(match[1]), match[2]
    names = expand(base)
    if copies:
        if len(names) > 1 or "[" in base or copies > EXPANSION_MAX:
            raise reader.fail(
                "the request has a range of names and a number of copies, or too many copies",
                hint=f"use one of the two, with at most {EXPANSION_MAX} copies",
            )
        names = tuple(f"{base}{i}" for i in range(copies))
    check_names(reader, (queue, *names))
    fields = _amount(reader, amount)
    settings: dict[str, object] = {}
    extras: dict[str, list[str]] = {}
    for clause in clauses[1:]:
        _ask_clause(reader, clause, fields, settings, extras, base=base.partition("[")[0], members=len(names))
    shape = Shape(**fields)  # type: ignore[arg-type]
    requests = [Request(id=f"{queue}/{name}", queue=queue, shape=shape, **settings) for name in names]  # type: ignore[arg-type]
    if "topology" in settings and "rank" not in settings and len(names) > 1:
        requests = [replace(request, rank=rank) for rank, request in enumerate(requests)]
    return requests, extras


def _amount(reader: ScenarioReader, text: str) -> dict[str, object]:
    """Parse an amount like ``0.5 gpu 8GiB of A100|H100`` and return the fields of a Shape."""
    fields: dict[str, object] = {}
    words = text.split()
    i = 0
    while i < len(words):
        word, following = words[i], words[i + 1] if i + 1 < len(words) else ""
        if following in ("gpu", "gpus"):
            devices = number_of(reader, word)
            if devices >= 1 and devices != int(devices):
                raise reader.fail(
                    f"{word} gpu is neither a number of whole devices nor a fraction of one",
                    hint="write 0.5 gpu or 2 gpu",
                )
            fields["gpu_count"] = max(1, int(devices))
            fields["gpu_milli"] = WHOLE_MILLI if devices >= 1 else round(devices * WHOLE_MILLI)
            i += 2
        elif following == "cpu":
            fields["cpu_milli"] = milli_of(reader, word)
            i += 2
        elif word == "of":
            fields["models"] = frozenset(following.split("|"))
            i += 2
        elif word == "each":
            i += 1
        elif is_amount(word):
            fields.update(mig_profile=word, gpu_count=1)
            i += 1
        else:
            fields["gpu_memory_mib"] = parse_memory_mib(word)
            fields.setdefault("gpu_count", 1)
            i += 1
    return fields


def _ask_clause(  # noqa: C901, PLR0912, PLR0915  one case per clause
    reader: ScenarioReader,
    clause: str,
    fields: dict[str, object],
    settings: dict[str, object],
    extras: dict[str, list[str]],
    *,
    base: str,
    members: int,
) -> None:
    """Parse one clause of a request and store its values in ``fields``, ``settings`` or ``extras``.

    Args:
        fields: fields of the requests' Shape.
        settings: other fields of the requests.
        extras: values that belong to the statement (``started``, ``submitted``, ``on``).
        base: name of the requests without a range, from which the name of a gang is taken.
        members: number of requests of the statement.
    """
    words = clause.split()
    match words:
        case ["gang"]:
            settings.update(gang=base, min_member=members)
        case ["gang", "named", name, "min", number]:
            settings.update(gang=name, min_member=int(number_of(reader, number)))
        case ["gang", "min", number]:
            settings.update(gang=base, min_member=int(number_of(reader, number)))
        case ["topology", *rest]:
            settings["topology"] = read_topology(reader, rest)
        case ["rank", number]:
            settings["rank"] = int(number_of(reader, number))
        case ["priority", number]:
            settings["priority"] = int(number_of(reader, number))
        case ["runs", duration]:
            settings["run_time_s"] = parse_seconds(duration)
        case ["pinned"]:
            settings["movable"] = False
        case ["guarded"]:
            settings["guarded"] = True
        case ["unevictable"]:
            settings["evictable"] = False
        case ["tenant" | "owner" as key, name]:
            settings[key] = name
        case ["started" | "submitted" as key, *rest, "ago"]:
            extras[key] = [part.strip() for part in " ".join(rest).split("/")]
        case ["on", *rest]:
            extras["on"] = [part.strip() for part in " ".join(rest).split("/")]
        case ["cpu", number]:
            fields["cpu_milli"] = milli_of(reader, number)
        case ["memory", size]:
            fields["memory_mib"] = parse_memory_mib(size)
        case ["slices", number, "of", most]:
            fields["gpu_slices"] = int(number_of(reader, number))
            fields["gpu_slices_max"] = int(number_of(reader, most))
        case ["devices", number]:
            fields["gpu_count"] = int(number_of(reader, number))
        case ["select", *rest]:
            fields["selector"] = (*strings(fields, "selector"), " ".join(rest))
        case ["tolerates", taint]:
            fields["tolerations"] = frozenset((*strings(fields, "tolerations"), taint))
        case ["card", bounds]:
            low, _, high = bounds.partition("..")
            fields["card_memory_mib_min"] = parse_memory_mib(low) if low else 0
            fields["card_memory_mib_max"] = parse_memory_mib(high) if high else 0
        case ["nvlink" | "numa" as topology, *rest] if rest in ([], ["required"]):
            fields["topology"] = Topology(topology)
            fields["topology_required"] = bool(rest)
        case ["mode", mode]:
            fields["mode"] = mode
        case _:
            raise reader.fail(
                f"clause {clause!r} is not known",
                hint="use gang [min N], priority N, runs 1h, cpu N, memory 8GiB, select k=v, tolerates k, pinned, ...",
            )
