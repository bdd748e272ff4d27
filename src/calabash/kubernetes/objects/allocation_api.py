"""The door of a node: by which of Kubernetes' two ways its devices are asked for.

A node has one. Its label ``calabash.dev/door`` says which; where it has none, its agent does, in its GpuNode.
"""

from __future__ import annotations

from enum import StrEnum


class NodeDoor(StrEnum):
    """TOKENS: by names of resources, through the kubelet's device plug-ins. CLAIMS: by ResourceClaims (DRA)."""

    TOKENS = "tokens"
    CLAIMS = "claims"


def door_named(*words: str) -> NodeDoor:
    """The first of these words that is a door; tokens where none is."""
    return next((NodeDoor(word) for word in words if word in tuple(NodeDoor)), NodeDoor.TOKENS)
