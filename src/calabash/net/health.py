"""How the backends of a load balancer are, in one condition: whether it works, a stable reason, and counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from calabash.model.network_services import Backend

NAMED_MAX = 5
WELL, ILL, NONE_WELL = "backends_well", "backends_ill", "no_backend"


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
