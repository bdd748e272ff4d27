"""Tokens: what the kubelet counts and hands out. A token means nothing until a container is about to be made with it."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterator, Sequence

from calabash.kubernetes.objects.names import CDI_KIND
from calabash.sharing.vgpu import SLICES_MAX

SPEC_PREFIX = "calabash-slot-"
CARD_PREFIX = "calabash-card-"  # tells our tokens of a name of NVIDIA's from those of its own plug-in
_NONCE_BYTES = 6


def token_ids(devices: int) -> tuple[str, ...]:
    """As many as slices can ever be on so many devices; their names never change their meaning, for they have none."""
    return tuple(f"slot-{number:04}" for number in range(devices * SLICES_MAX))


def card_ids() -> Iterator[str]:
    """Tokens of whole cards under a name that is NVIDIA's, without an end; they mean no more than others do."""
    return (f"{CARD_PREFIX}{number:04}" for number in itertools.count())


def is_card_id(token: str) -> bool:
    """Whether it is one of ours."""
    return token.startswith(CARD_PREFIX)


def new_name(tokens: Sequence[str]) -> str:
    """A CDI device name that was never in force before: what a runtime may remember of another is then never taken."""
    return f"{min(tokens)}-{secrets.token_hex(_NONCE_BYTES)}"


def qualified(name: str) -> str:
    """As the kubelet and the runtime know it."""
    return f"{CDI_KIND}={name}"


def device_name(qualified_name: str) -> str | None:
    """The name in a qualified one of our kind; None for others."""
    kind, _, name = qualified_name.partition("=")
    return name if kind == CDI_KIND and name else None


def spec_name(tokens: Sequence[str]) -> str:
    """Name of the spec file for containers with exactly these tokens."""
    first = min(tokens)
    rest = hashlib.sha256("\n".join(sorted(tokens)).encode()).hexdigest()[:12]
    return f"{SPEC_PREFIX}{first}-{rest}" if len(tokens) > 1 else f"{SPEC_PREFIX}{first}"
