"""``nvidia-smi``, for what NVML has no call for: one run each, with a deadline, whatever it says."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calabash.adapters.gpu.library import OWN_FILES, DriverFiles
from calabash.adapters.gpu.programs import driver_program, program_environment
from calabash.adapters.host.children import run_program
from calabash.model.errors import CalabashError, Reason

PROGRAM = "nvidia-smi"
_SAID_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one run has said.

    Args:
        code: its exit code.
        output: its standard output as it is.
        said: both streams in one line of at most 300 characters; never empty after a failure.
    """

    code: int
    output: str
    said: str

    def reason(self, words: Sequence[tuple[str, Reason]]) -> Reason | None:
        """That of the first of these words which it has said, in any case."""
        return next((reason for word, reason in words if word.lower() in self.said.lower()), None)


def ask_smi(
    *words: str,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    files: DriverFiles = OWN_FILES,
) -> Answer:
    """One run of it. Raises CalabashError: UNSUPPORTED where it is not, TIMEOUT, NOT_PERMITTED when it cannot be started."""
    environment = environment or {}
    program = driver_program(PROGRAM, environment, files)
    if program is None:
        raise CalabashError(
            f"{PROGRAM} is not here",
            reason=Reason.UNSUPPORTED,
            hint="it comes with the driver: nvidia-utils, or make native for a simulated node",
        )
    try:
        done = run_program(
            [str(program), *words], timeout_s=timeout_s, environment=program_environment(program, environment, files)
        )
    except subprocess.TimeoutExpired as error:
        raise CalabashError(
            f"{PROGRAM} {words[0]} has not answered within {timeout_s:g} s", reason=Reason.TIMEOUT
        ) from error
    except OSError as error:
        raise CalabashError(f"{PROGRAM} cannot be run: {error.strerror}", reason=Reason.NOT_PERMITTED) from error
    said = " ".join((done.stdout + done.stderr).split())[:_SAID_MAX]
    return Answer(code=done.returncode, output=done.stdout, said=said or f"{PROGRAM} failed with {done.returncode}")
