"""Counters of a server in the Prometheus text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_PREFIX = "calabash_remote_"


class LeaseCounters:
    """Counters by name and the value of one label ("" for a counter without labels).

    Only those in ``_COUNTERS`` are shown.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, name: str, label: str = "") -> None:
        """Add one to a counter."""
        self._counts[name, label] += 1

    def value(self, name: str, label: str = "") -> int:
        """Return the value of a counter."""
        return self._counts[name, label]

    def text(self, gauges: Mapping[str, tuple[str, Mapping[str, float]]]) -> str:
        """Return the counters and some gauges as Prometheus text.

        Args:
            gauges: for each gauge, the name of its label ("" for none) and its values by the value of the label.
        """
        lines = []
        for name, (help_text, label_name) in _COUNTERS.items():
            lines += [f"# HELP {_PREFIX}{name} {help_text}", f"# TYPE {_PREFIX}{name} counter"]
            found = {label: n for (counted, label), n in sorted(self._counts.items()) if counted == name}
            if not label_name:
                found = {"": found.get("", 0)}
            lines += [f"{_PREFIX}{name}{_labels(label_name, label)} {n}" for label, n in found.items()]
        for name, (label_name, values) in gauges.items():
            lines.append(f"# TYPE {_PREFIX}{name} gauge")
            lines += [f"{_PREFIX}{name}{_labels(label_name, label)} {value:g}" for label, value in values.items()]
        return "\n".join(lines) + "\n"


_COUNTERS = {
    "leases_total": ("Leases that were granted.", ""),
    "lease_ends_total": ("Leases that have ended, by reason.", "why"),
    "refusals_total": ("Requests that were refused, by reason.", "reason"),
    "sessions_total": ("Connections of programs that were handed to their workers.", ""),
    "connections_total": ("Connections by what they began with.", "kind"),
}


def _labels(name: str, value: str) -> str:
    if not name:
        return ""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{{name}="{escaped}"}}'
