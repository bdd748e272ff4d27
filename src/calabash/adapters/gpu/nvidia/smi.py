"""Run ``nvidia-smi`` with a deadline, for operations that NVML has no call for."""

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
    """Result of one run.

    Args:
        code: exit code.
        output: standard output, unchanged.
        said: text for messages: standard output and error joined in one line of at most 300 characters. It is not empty
            after a failure.
    """

    code: int
    output: str
    said: str

    def reason(self, words: Sequence[tuple[str, Reason]]) -> Reason | None:
        """Return the reason of the first pair whose word is in the output; None if there is no such pair.

        Args:
            words: pairs of a word and a reason. Upper and lower case of the word are not distinguished.
        """
        return next((reason for word, reason in words if word.lower() in self.said.lower()), None)


def ask_smi(
    *words: str,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    files: DriverFiles = OWN_FILES,
) -> Answer:
    """Run nvidia-smi with the given arguments.

    Raises CalabashError: UNSUPPORTED if it is not installed, TIMEOUT, NOT_PERMITTED if it cannot be started.
    """
    environment = environment or {}
    program = driver_program(PROGRAM, environment, files)
    if program is None:
        raise CalabashError(
            f"{PROGRAM} is not installed",
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
