"""Load balancer backends: their names, the condition that summarises their health, and the text form of the closed ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from calabash.model.network_services import Backend

ClosedBackends = frozenset[tuple[str, int]]
NONE_CLOSED: ClosedBackends = frozenset()
NAMED_MAX = 5
WELL, ILL, NONE_WELL = "backends_well", "backends_ill", "no_backend"


def closed_text(closed: ClosedBackends) -> str:
    """Closed backends as one line, which ``read_closed`` understands."""
    return ",".join(f"{port}:{number}" for port, number in sorted(closed))


def read_closed(lines: Iterable[str]) -> ClosedBackends:
    """The backends of lines of ``closed_text``; what is not of its form is left out."""
    split = (item.rpartition(":") for line in lines for item in line.split(","))
    return frozenset((port, int(number)) for port, _, number in split if port and number.isdigit())


def backend_name(backend: Backend) -> str:
    """``SUBNET.PORT-NUMBER``."""
    return f"{backend.port.partition('/')[2].replace('/', '.')}-{backend.number}"


def health(well: Mapping[str, bool]) -> tuple[bool | None, str, str]:
    """Whether a balancer works, the reason, and a text with counts, of whether each backend is well."""
    if not well:
        return True, "active", ""
    ill = sorted(name for name, fine in well.items() if not fine)
    named = ", ".join(ill[:NAMED_MAX]) + (f" and {len(ill) - NAMED_MAX} more" if len(ill) > NAMED_MAX else "")
    text = f"{len(well) - len(ill)} of {len(well)} backends are well" + (f"; ill: {named}" if ill else "")
    return len(ill) < len(well), WELL if not ill else ILL if len(ill) < len(well) else NONE_WELL, text
