"""Device IDs of the kubelet's device plug-in API, and the CDI and spec file names derived from them.

A device ID means nothing until a container is about to be created with it.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterator, Sequence

from calabash.kubernetes.objects.names import CDI_KIND
from calabash.sharing.vgpu import SLICES_MAX

SPEC_PREFIX = "calabash-slot-"
CARD_PREFIX = (
    "calabash-card-"  # distinguishes our device IDs under NVIDIA's resource name from those of NVIDIA's plug-in
)
_NONCE_BYTES = 6


def token_ids(devices: int) -> tuple[str, ...]:
    """Return as many device IDs as slices can ever exist on so many devices; the names never change."""
    return tuple(f"slot-{number:04}" for number in range(devices * SLICES_MAX))


def card_ids() -> Iterator[str]:
    """Yield device IDs of whole cards under NVIDIA's resource name, without end."""
    return (f"{CARD_PREFIX}{number:04}" for number in itertools.count())


def is_card_id(token: str) -> bool:
    """Return True if the device ID is one of ``card_ids``."""
    return token.startswith(CARD_PREFIX)


def new_name(tokens: Sequence[str]) -> str:
    """Return a CDI device name that was never used before, so that no runtime has cached it."""
    return f"{min(tokens)}-{secrets.token_hex(_NONCE_BYTES)}"


def qualified(name: str) -> str:
    """Return the fully qualified CDI name."""
    return f"{CDI_KIND}={name}"


def device_name(qualified_name: str) -> str | None:
    """Return the CDI device name in a qualified name of Calabash's kind, None for other kinds."""
    kind, _, name = qualified_name.partition("=")
    return name if kind == CDI_KIND and name else None


def spec_name(tokens: Sequence[str]) -> str:
    """Return the name of the spec file for containers with exactly these device IDs."""
    first = min(tokens)
    rest = hashlib.sha256("\n".join(sorted(tokens)).encode()).hexdigest()[:12]
    return f"{SPEC_PREFIX}{first}-{rest}" if len(tokens) > 1 else f"{SPEC_PREFIX}{first}"
