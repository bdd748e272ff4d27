"""What a server counts, as Prometheus reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_PREFIX = "calabash_remote_"


class Tallies:
    """Counters by name and one label; what is not known is not shown."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, name: str, label: str = "") -> None:
        self._counts[name, label] += 1

    def of(self, name: str, label: str = "") -> int:
        return self._counts[name, label]

    def text(self, gauges: Mapping[str, tuple[str, Mapping[str, float]]]) -> str:
        """The counters, and gauges as ``name -> (label's name, values by label)``."""
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
    "lease_ends_total": ("Leases that have ended, by why.", "why"),
    "refusals_total": ("Requests that were refused, by reason.", "reason"),
    "sessions_total": ("Connections of programs that were handed to their workers.", ""),
    "connections_total": ("Connections by what they began with.", "kind"),
}


def _labels(name: str, value: str) -> str:
    if not name:
        return ""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{{name}="{escaped}"}}'
