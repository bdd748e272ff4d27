"""Emulated machine for tests: built once, run once, with its answers by case."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.vfio.machine import EmulatedMachine, build_innermost
from tools.emulated import AbsentError, Emulated, cache, found


class Cases(dict[str, Mapping[str, Any]]):
    """Answers by case, and the directory with the output of the machines' serial lines."""

    def __init__(self, answers: Mapping[str, Mapping[str, Any]], logs: Path) -> None:
        super().__init__(answers)
        self._logs = logs

    def evidence(self) -> Iterable[Path]:
        """Return the directory that is kept if a test fails."""
        return [self._logs]


def _parts() -> Emulated:
    try:
        if os.geteuid() != 0:
            raise AbsentError("a directory is shown to an emulated machine by root")
        if shutil.which("gcc") is None or shutil.which("busybox") is None:
            raise AbsentError("Debian packages are missing: gcc busybox-static")
        return found()
    except AbsentError as absent:
        reason = f"no emulated machine: {absent}"
        if os.environ.get("CALABASH_VFIO") == "required":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """Run the cases on a machine with an IOMMU and on one without; return the answers."""
    parts = _parts()
    scratch = cache() / f"run-{os.getpid()}"  # not in /tmp, over which the machine mounts a directory of its own
    scratch.mkdir(parents=True)
    try:
        program = scratch / "innermost"
        build_innermost(program)
        machine = EmulatedMachine(parts=parts, scratch=scratch)
        with ThreadPoolExecutor(2) as both:
            bare = both.submit(machine.run, machine.program(program, "no-iommu"), iommu=False, processors=1)
            told = machine.run(machine.program(program))
        runs = (told, bare.result())
    finally:
        shutil.rmtree(scratch)
    logs = tmp_path_factory.mktemp("machines")
    for name, run in zip(("iommu", "no-iommu"), runs, strict=True):
        (logs / f"{name}.log").write_text(run.console)
        if not any(line.startswith("end 0") for line in run.lines):
            pytest.fail(f"the machine ended early:\n{run.console[-4000:]}")
    cases = [json.loads(line) for run in runs for line in run.lines if line.startswith("{")]
    print(f"machines ran for {', '.join(f'{run.seconds:.0f} s' for run in runs)}")
    return Cases({case.pop("case"): case for case in cases}, logs)
