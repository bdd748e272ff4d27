"""Supervisor outside a cluster's namespaces: creates them, and cleans up after them however the test process ended.

``namespaces.py`` starts the warden with a pipe as standard input; end of file means that the test process has ended.
The warden prints one line of JSON with the cluster's directory and the port on this machine's loopback interface that
leads to the same port inside. It waits for the end of process 1 of the namespaces, which the kernel allows only after
every other process inside has ended. Then it removes the control groups and the directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

PREFIX = "calabash-kube-"
GROUPS = Path("/sys/fs/cgroup")
_NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")


def hierarchies() -> list[Path]:
    """Return the mounted cgroup hierarchies: the single one of cgroup v2, or all of v1 without symbolic links."""
    if (GROUPS / "cgroup.controllers").exists():
        return [GROUPS]
    return sorted(path for path in GROUPS.glob("*") if path.is_dir() and not path.is_symlink())


def remove_groups(name: str, patience_s: float = 60.0) -> None:
    """Remove the control groups of a cluster whose processes have ended or are about to end."""
    end = time.monotonic() + patience_s
    for tree in hierarchies():
        for group, _, _ in os.walk(tree / name, topdown=False):
            while True:
                try:
                    os.rmdir(group)
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > end:
                        return
                    time.sleep(0.02)


def take_lock(root: Path) -> IO[str]:
    """Create the lock file of a cluster's directory and lock it.

    The file gets its name only after it is locked, because another warden may search for abandoned directories at any
    time.
    """
    lock = (root / "lock.new").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    (root / "lock.new").rename(root / "lock")
    return lock


def abandoned(root: Path) -> IO[str] | None:
    """Lock the directory of a warden that died without cleaning up; return None if the directory is not abandoned."""
    try:
        lock = (root / "lock").open("r+")
    except OSError:
        return None  # its warden has not yet created it, or has removed everything
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def sweep() -> None:
    """Remove the control groups and directories of wardens that were killed."""
    for root in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        lock = abandoned(root)
        if lock is not None:
            with lock:
                remove_groups(root.name)
                shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sweep()
    root = Path(tempfile.mkdtemp(prefix=PREFIX))
    root.chmod(0o711)  # containers of other users pass through
    lock = take_lock(root)
    (root / "log").mkdir()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as outside:
        first = [
            sys.executable,
            "-S",
            "-E",
            str(Path(__file__).with_name("inside.py")),
            str(root),
            str(outside.fileno()),
        ]
        inside = subprocess.Popen(
            ["unshare", *_NAMESPACES, "--propagation", "private", "--", *first],
            pass_fds=(outside.fileno(),),
            stdout=sys.stderr,
        )
        print(json.dumps({"root": str(root), "port": outside.getsockname()[1]}), flush=True)
    gone = threading.Thread(target=inside.wait, daemon=True)
    gone.start()
    while gone.is_alive() and os.read(0, 4096):
        pass
    gone.join(timeout=10)
    inside.kill()
    inside.wait()
    remove_groups(root.name)
    if os.environ.get("CALABASH_KUBE_KEEP"):
        (root / "lock").unlink()
    else:
        shutil.rmtree(root, ignore_errors=True)
    lock.close()


if __name__ == "__main__":
    main()
