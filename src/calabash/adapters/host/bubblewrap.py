"""Command line of ``calabash-enclose``, which starts a program with a restricted view of the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/proc")
_HANDED_ON = "PROGRAM_"
PLAIN_NODES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """Restrictions of a program.

    Args:
        root: an empty directory in which a root directory for the program is built; the program then has no network.
            None: the program has the machine's root directory and network, and ``sees`` and ``writes`` are ignored.
        sees: files and directories that the program may read.
        writes: files, directories and device nodes that the program may also write, as far as their modes allow.
        user: user ID of the program; None for that of this process.
        environment: all variables of the program.
    """

    root: Path | None = None
    sees: Sequence[str] = ()
    writes: Sequence[str] = ()
    user: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def words(self, launcher: Path, program: Sequence[str], *, go: int) -> list[str]:
        """Return the command line that starts the program.

        Args:
            launcher: path of ``calabash-enclose``.
            program: command line of the program.
            go: descriptor that the launcher inherits. It starts the program when a byte has arrived there.
        """
        words = [str(launcher), "--go", str(go)]
        if self.root is not None:
            words += ["--root", str(self.root)]
            words += [word for path in self.sees for word in ("--see", path)]
            words += [word for path in self.writes for word in ("--write", path)]
        if self.user is not None:
            words += ["--user", str(self.user)]
        return [*words, "--", *program]

    def variables(self) -> dict[str, str]:
        """Return the environment with which ``calabash-enclose`` is started. It contains all variables of the program.

        The variables are not passed on the command line, because all users can read command lines.
        """
        return {_HANDED_ON + name: value for name, value in self.environment.items()}
