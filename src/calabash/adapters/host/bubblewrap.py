"""Programs that get as little of the machine as they need: the words for ``calabash-enclose``, which starts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/proc")
_HANDED_ON = "PROGRAM_"
PLAIN_NODES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """What a program is left.

    Args:
        root: an empty directory where its own root is built; None: it keeps the machine's, and its network.
        sees: files and directories that it may read.
        writes: those that it may also write, as far as their modes allow; device nodes are among these.
        user: as whom it runs; None: as we do.
        environment: its variables, all of them.
    """

    root: Path | None = None
    sees: Sequence[str] = ()
    writes: Sequence[str] = ()
    user: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def words(self, launcher: Path, program: Sequence[str], *, go: int) -> list[str]:
        """The command line that starts the program once a byte has arrived on the descriptor ``go``."""
        words = [str(launcher), "--go", str(go)]
        if self.root is not None:
            words += ["--root", str(self.root)]
            words += [word for path in self.sees for word in ("--see", path)]
            words += [word for path in self.writes for word in ("--write", path)]
        if self.user is not None:
            words += ["--user", str(self.user)]
        return [*words, "--", *program]

    def variables(self) -> dict[str, str]:
        """Return the environment of the launcher. It hands the program's variables on; every user reads a command line."""
        return {_HANDED_ON + name: value for name, value in self.environment.items()}
