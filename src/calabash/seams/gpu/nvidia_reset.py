"""Resets of NVIDIA cards by a helper process: NVML has no call for it, ``nvidia-smi --gpu-reset`` has its own way into the
driver and refuses while anybody has the card open, the caller's own NVML included.

A card of a simulated node is reset by the node's tool, which refuses for the same reasons.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from calabash.model.errors import CalabashError, Reason
from calabash.seams.gpu import sim

RESET_S = 60.0  # the longest that a reset may take
_REASONS = (
    ("in use", Reason.CONFLICT),
    ("Insufficient Permissions", Reason.NOT_PERMITTED),
    ("not supported", Reason.UNHEALTHY),
)


def reset_simulated(state: Path, uuid: str) -> None:
    """A card of a simulated node. Raises CalabashError."""
    sim.reset_card(state, uuid)


def reset_real(uuids: Sequence[str]) -> None:
    """Cards of this machine, together; nobody in this process may have NVML open. Raises CalabashError."""
    cards = ",".join(uuids)
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise CalabashError(
            "nvidia-smi, which resets cards, is not here",
            reason=Reason.NOT_FOUND,
            hint="install the driver's own tools, or restart the machine",
        )
    try:
        done = subprocess.run(
            [tool, "--gpu-reset", "-i", cards],
            capture_output=True,
            timeout=RESET_S,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise CalabashError(f"nvidia-smi has not reset {cards} within {RESET_S:g} s", reason=Reason.TIMEOUT) from error
    except OSError as error:
        raise CalabashError(f"nvidia-smi cannot be run: {error.strerror}", reason=Reason.NOT_PERMITTED) from error
    if done.returncode == 0:
        return
    said = " ".join((done.stdout + done.stderr).split())[:300] or f"nvidia-smi failed with {done.returncode}"
    reason = next((reason for part, reason in _REASONS if part.lower() in said.lower()), Reason.UNHEALTHY)
    raise CalabashError(
        said, reason=reason, hint="end what has the card open, persistence daemon and monitors included"
    )
