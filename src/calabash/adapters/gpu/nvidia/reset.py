"""Resets of NVIDIA cards by a helper process: NVML has no call for it, ``nvidia-smi --gpu-reset`` has its own way into the
driver and refuses while anybody has the card open, the caller's own NVML included.

A card of a simulated node is reset by the node's tool, which refuses for the same reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calabash.adapters.gpu import sim
from calabash.adapters.gpu.library import OWN_FILES, DriverFiles
from calabash.adapters.gpu.nvidia.smi import ask_smi
from calabash.model.errors import CalabashError, Reason

RESET_S = 60.0  # the longest that a reset may take
_REASONS = (
    ("in use", Reason.CONFLICT),
    ("Insufficient Permissions", Reason.NOT_PERMITTED),
    ("not supported", Reason.UNHEALTHY),
)


def reset_simulated(state: Path, uuid: str) -> None:
    """A card of a simulated node. Raises CalabashError."""
    sim.reset_card(state, uuid)


def reset_real(uuids: Sequence[str], files: DriverFiles = OWN_FILES) -> None:
    """Cards of this machine, together; nobody in this process may have NVML open. Raises CalabashError."""
    answer = ask_smi("--gpu-reset", "-i", ",".join(uuids), timeout_s=RESET_S, files=files)
    if answer.code != 0:
        raise CalabashError(
            answer.said,
            reason=answer.reason(_REASONS) or Reason.UNHEALTHY,
            hint="end what has the card open, persistence daemon and monitors included",
        )
