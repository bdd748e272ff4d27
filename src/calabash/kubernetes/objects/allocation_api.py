"""Allocation API of a node: device plug-ins or DRA.

A node has exactly one. Its label ``calabash.dev/door`` selects it; without the label, the GpuNode of its agent does.
"""

from __future__ import annotations

from enum import StrEnum


class AllocationApi(StrEnum):
    """TOKENS: resource names and the kubelet's device plug-ins. CLAIMS: ResourceClaims (DRA)."""

    TOKENS = "tokens"
    CLAIMS = "claims"


def allocation_api_named(*words: str) -> AllocationApi:
    """Return the first of the words that names an allocation API; TOKENS if none does."""
    return next((AllocationApi(word) for word in words if word in tuple(AllocationApi)), AllocationApi.TOKENS)
