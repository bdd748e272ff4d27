"""Device IDs of the kubelet's device plug-in API, and the CDI and spec file names derived from them.

A device ID stands for no particular device. The devices are chosen by the pod's plan, when a container with the device
ID is about to be created.
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
    """Return the device IDs of a node with ``devices`` devices: one for each slice that can exist at the same time.

    The same names are returned at each call.
    """
    return tuple(f"slot-{number:04}" for number in range(devices * SLICES_MAX))


def card_ids() -> Iterator[str]:
    """Yield the device IDs that stand for whole cards under NVIDIA's resource name; the iterator never ends."""
    return (f"{CARD_PREFIX}{number:04}" for number in itertools.count())


def is_card_id(token: str) -> bool:
    """Return True if the device ID is one of ``card_ids``."""
    return token.startswith(CARD_PREFIX)


def new_name(tokens: Sequence[str]) -> str:
    """Return a new CDI device name for a container with these device IDs.

    It contains a random part, so that it differs from all names that a container runtime may have cached.
    """
    return f"{min(tokens)}-{secrets.token_hex(_NONCE_BYTES)}"


def qualified(name: str) -> str:
    """Return the fully qualified CDI name."""
    return f"{CDI_KIND}={name}"


def device_name(qualified_name: str) -> str | None:
    """Return the device name in a fully qualified CDI name; None if the name is not of Calabash's CDI kind."""
    kind, _, name = qualified_name.partition("=")
    return name if kind == CDI_KIND and name else None


def spec_name(tokens: Sequence[str]) -> str:
    """Return the name of the CDI spec file for containers with exactly these device IDs, without its extension."""
    first = min(tokens)
    rest = hashlib.sha256("\n".join(sorted(tokens)).encode()).hexdigest()[:12]
    return f"{SPEC_PREFIX}{first}-{rest}" if len(tokens) > 1 else f"{SPEC_PREFIX}{first}"
