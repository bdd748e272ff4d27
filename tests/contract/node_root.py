"""Command line that runs a program with a simulated node's /proc, /sys and /dev, in a mount namespace with its own root.

The kernel's /proc takes no new entries, so the tree of ``calabash-simctl root`` cannot be laid over it; in a root of its
own, the program finds the tree at the very paths that NVIDIA's tools have built in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.contract.go_programs import cache

ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = """
set -eu
node=$1 repository=$2 programs=$3; shift 3
jail=$node/jail
mkdir -p "$jail"
mount -t tmpfs tmpfs "$jail"
for d in usr lib lib64 bin etc; do
    [ -e "/$d" ] || continue
    if [ -L "/$d" ]; then cp -P "/$d" "$jail/$d"; else mkdir "$jail/$d"; mount --bind "/$d" "$jail/$d"; fi
done
for d in proc sys dev; do mkdir "$jail/$d"; mount --bind "$node/root/$d" "$jail/$d"; done
mkdir -p "$jail/tmp" "$node/var/run/cdi" "$node/var/lib/kubelet/device-plugins" "$jail/var"
mount --bind "$node/var" "$jail/var"
for d in "$node" "$repository" "$programs"; do mkdir -p "$jail$d"; mount --bind "$d" "$jail$d"; done
exec chroot "$jail" "$@"
"""


def in_node_root(directory: Path, command: Sequence[str | Path]) -> list[str]:
    """Return the command line that runs ``command`` in the node's root.

    ``directory`` holds the node's state file and its root. The program's files below /var are in ``directory / "var"``.
    """
    words = [str(word) for word in command]
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SCRIPT, "sh"]
    return [*unshare, str(directory), str(ROOT), str(cache()), *words]
