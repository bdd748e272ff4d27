"""Traps in a hostile directory: modules and programs with the names of those that other programs search for.

A trap that is run creates a file with its name and its user, so that a test can detect it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

PROGRAMS = (
    "apt-get",
    "dpkg-deb",
    "ip",
    "ldconfig",
    "modprobe",
    "mount",
    "nvidia-cuda-mps-control",
    "nvidia-smi",
    "ovs-vsctl",
    "python",
    "python3",
    "sh",
    "umount",
    "unshare",
    "virsh",
)
# Modules that the interpreter cannot do without are built in, so the trap imports none that a trap is named after.
_MODULE = """\
import posix
posix.close(posix.open({marks!r} + "/" + __name__ + "." + str(posix.geteuid()), posix.O_CREAT | posix.O_WRONLY, 0o666))
raise ImportError("the trap " + __name__ + " was imported")
"""
_PROGRAM = '#!/bin/sh\n: > "{marks}/$(/usr/bin/basename "$0").$(/usr/bin/id -u)"\nexit 1\n'


class Traps:
    """Traps in ``directory``; programs are in ``directory/bin``. ``marks`` may be written by every user."""

    def __init__(self, directory: Path, marks: Path) -> None:
        self.directory, self.marks = directory, marks
        marks.mkdir()
        marks.chmod(0o777)
        for name in _module_names():
            (directory / f"{name}.py").write_text(_MODULE.format(marks=str(marks)))
        package = directory / "calabash"
        package.mkdir()
        (package / "__init__.py").write_text(_MODULE.format(marks=str(marks)))
        programs = directory / "bin"
        programs.mkdir()
        for name in PROGRAMS:
            program = programs / name
            program.write_text(_PROGRAM.format(marks=marks))
            program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """Return variables that lead an interpreter, the loader and a shell's search to the traps."""
        return {
            "PYTHONPATH": str(self.directory),
            "PYTHONSTARTUP": str(self.directory / "sitecustomize.py"),
            "PYTHONUSERBASE": str(self.directory),
            "PYTHONHOME": str(self.directory),
            "PYTHONINSPECT": "1",
            "PYTHONWARNINGS": "error",
            "PYTHONBREAKPOINT": "sitecustomize.trap",
            "LD_PRELOAD": str(self.directory / "preloaded.so"),
            "LD_AUDIT": str(self.directory / "audit.so"),
            "GCONV_PATH": str(self.directory),
            "CALABASH_SIM": str(self.directory / "node.state"),
            "TMPDIR": str(self.directory),
        }

    def sprung(self) -> list[str]:
        """Return the names of the traps that were run, each followed by the uid that ran it."""
        return sorted(os.listdir(self.marks))


def _module_names() -> set[str]:
    """Return the names of all modules that an interpreter of this environment could search for."""
    names = {name for name in sys.stdlib_module_names if name not in sys.builtin_module_names}
    for place in {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}:
        names |= {entry.name.partition(".")[0] for entry in os.scandir(place) if entry.name.isidentifier()}
        names |= {entry.name.partition(".")[0] for entry in os.scandir(place) if entry.name.endswith((".py", ".so"))}
    return (names | {"sitecustomize", "usercustomize"}) - {"calabash"}
