"""Allocation API of a node: how pods ask for its devices, by the kubelet's device plug-ins or by DRA.

A node has exactly one at a time. Its label ``calabash.dev/door`` selects it. Without the label, the allocation API that
the node's agent reports in its GpuNode holds.
"""

from __future__ import annotations

from enum import StrEnum


class AllocationApi(StrEnum):
    """The allocation APIs: TOKENS for resource names and device plug-ins, CLAIMS for ResourceClaims (DRA)."""

    TOKENS = "tokens"
    CLAIMS = "claims"


def allocation_api_named(*words: str) -> AllocationApi:
    """Return the allocation API that the first valid word names; TOKENS if no word is valid."""
    return next((AllocationApi(word) for word in words if word in tuple(AllocationApi)), AllocationApi.TOKENS)
