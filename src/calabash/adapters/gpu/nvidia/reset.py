"""Reset NVIDIA cards with ``nvidia-smi --gpu-reset``, because NVML has no call for it.

The program refuses while any process has the card open. This includes the calling process while its NVML is loaded. A
card of a simulated node is reset by the tool of the simulation, which refuses for the same reasons.
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
    """Reset a card of the simulated node with this state file. Raises CalabashError as ``sim.reset_card``."""
    sim.reset_card(state, uuid)


def reset_real(uuids: Sequence[str], files: DriverFiles = OWN_FILES) -> None:
    """Reset cards of this machine together; this process must not have NVML open.

    Raises CalabashError: UNSUPPORTED without nvidia-smi, CONFLICT while a card is in use, NOT_PERMITTED, TIMEOUT,
    UNHEALTHY.
    """
    answer = ask_smi("--gpu-reset", "-i", ",".join(uuids), timeout_s=RESET_S, files=files)
    if answer.code != 0:
        raise CalabashError(
            answer.said,
            reason=answer.reason(_REASONS) or Reason.UNHEALTHY,
            hint="end all processes that have the card open, including the persistence daemon and monitors",
        )
