"""Requirements on labels, as in node affinity and in label selectors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from calabash.adapters.kube.objects.core import LabelSelector, SelectorRequirement
from calabash.kubernetes.node_filters.reasons import Cause, UncheckedError

REQUIREMENTS_MAX = 256
VALUES_MAX = 1024
LABEL_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
NODE_OPERATORS = LABEL_OPERATORS | {"Gt", "Lt"}

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_PREFIX_MAX = 253
_INTEGER = re.compile(r"[+-]?[0-9]{1,63}", re.ASCII)
_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Requirement:
    """Requirement on one label: ``key operator values``. ``number`` is the value of Gt and Lt."""

    key: str
    operator: str
    values: frozenset[str]
    number: int = 0

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if an object with these labels meets the requirement."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        found = _integer(value) if value is not None else None
        if found is None:
            return False
        return found > self.number if self.operator == "Gt" else found < self.number


Selector = tuple[Requirement, ...]


def all_match(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return True if an object with these labels meets all requirements; True if there are none."""
    return all(one.matches(labels) for one in selector)


def requirements(found: Sequence[SelectorRequirement], operators: Collection[str], path: str) -> Selector:
    """Return the requirements of a list.

    kube-scheduler ignores a term that has a requirement with an invalid key or value. Such requirements are refused
    here instead.

    Raises:
        UncheckedError: a requirement is not valid, or there are too many.
    """
    if len(found) > REQUIREMENTS_MAX:
        raise UncheckedError(Cause.SELECTOR, path, f"{len(found)} requirements, at most {REQUIREMENTS_MAX}")
    return tuple(_requirement(one, operators, f"{path}[{i}]") for i, one in enumerate(found))


def equal_labels(labels: Mapping[str, str], path: str) -> Selector:
    """Return the requirements that labels have these values. Raises UncheckedError if one is not valid."""
    return tuple(
        Requirement(_key(key, path), "In", frozenset({_value(value, path)})) for key, value in sorted(labels.items())
    )


def label_selector(found: LabelSelector, path: str) -> Selector:
    """Return the requirements of a label selector. Raises UncheckedError if one is not valid."""
    return (
        *equal_labels(found.match_labels, f"{path}.matchLabels"),
        *requirements(found.match_expressions, LABEL_OPERATORS, f"{path}.matchExpressions"),
    )


def _requirement(one: SelectorRequirement, operators: Collection[str], path: str) -> Requirement:
    operator, values = one.operator, one.values
    if operator not in operators:
        raise UncheckedError(Cause.SELECTOR, f"{path}.operator", f"{operator[:64]!r} is not known")
    if len(values) > VALUES_MAX:
        raise UncheckedError(Cause.SELECTOR, f"{path}.values", f"{len(values)} values, at most {VALUES_MAX}")
    least, most = {"In": (1, VALUES_MAX), "NotIn": (1, VALUES_MAX), "Gt": (1, 1), "Lt": (1, 1)}.get(operator, (0, 0))
    if not least <= len(values) <= most:
        raise UncheckedError(Cause.SELECTOR, f"{path}.values", f"{operator} with {len(values)} values")
    key = _key(one.key, f"{path}.key")
    for value in values:
        _value(value, f"{path}.values")
    number = _integer(values[0]) if operator in ("Gt", "Lt") else 0
    if number is None:
        raise UncheckedError(Cause.SELECTOR, f"{path}.values", f"{values[0]!r} is not an integer")
    return Requirement(key, operator, frozenset(values), number)


def _key(key: str, path: str) -> str:
    prefix, slash, name = key.rpartition("/")
    good = len(prefix) <= _PREFIX_MAX and _PREFIX.fullmatch(prefix) is not None if slash else True
    if not good or _NAME.fullmatch(name) is None:
        raise UncheckedError(Cause.SELECTOR, path, f"{key[:64]!r} is not the name of a label")
    return key


def _value(value: str, path: str) -> str:
    if value and _NAME.fullmatch(value) is None:
        raise UncheckedError(Cause.SELECTOR, path, f"{value[:64]!r} is not a value of a label")
    return value


def _integer(text: str) -> int | None:
    """Return a decimal number of 64 bits; None if the text is none."""
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if _INTEGER_MIN <= number <= _INTEGER_MAX else None
