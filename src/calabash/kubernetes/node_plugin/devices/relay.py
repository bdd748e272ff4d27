"""``calabash serve plugin-relay``: keep a node's devices registered at the kubelet while the agent restarts.

The kubelet marks all devices of a device plug-in as unhealthy while the plug-in is not connected, as it would be during
an update of the agent. An agent that was started with ``--relay`` therefore registers its device plug-ins at this
process, and the relay registers them at the kubelet. The relay is kept small so that it rarely needs an update itself:
it has no rights except on its directories, and reads only what the kubelet and the agent send.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import structlog

from calabash.adapters.host.files import lock_exclusive
from calabash.adapters.kubelet.protocol import Allocated
from calabash.kubernetes.node_plugin.containers.device_ids import new_name, qualified
from calabash.kubernetes.node_plugin.process_memory import TIDY_EVERY_S, give_back, keep_small
from calabash.kubernetes.node_plugin.settings import AgentSettings, relay_directory
from calabash.model.errors import CalabashError, Reason

log = structlog.get_logger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    usual = AgentSettings(node="")
    made = argparse.ArgumentParser(
        prog="calabash serve plugin-relay",
        description="Keep a node's devices registered at the kubelet while the agent of the node restarts.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=100),
    )
    made.add_argument("--home", type=Path, default=usual.home, help="directory of the node's agent")
    made.add_argument("--kubelet", type=Path, default=usual.kubelet, help="the kubelet's root directory")
    return made


def answer(device_ids: tuple[str, ...]) -> Allocated:
    """Return the answer to the kubelet's call of ``Allocate`` while no agent runs: a new CDI device name."""
    return Allocated(cdi_names=(qualified(new_name(device_ids)),))


def serve(home: Path, kubelet: Path, stop: threading.Event) -> None:
    """Relay between the kubelet and the agent until ``stop`` is set.

    Args:
        home: directory of the node's agent.
        kubelet: root directory of the kubelet.
        stop: event that ends the relay.

    Raises:
        CalabashError: NOT_PERMITTED if the relay's directory cannot be used, CONFLICT if another relay uses it.
    """
    from calabash.adapters.kubelet import PluginRelay  # noqa: PLC0415  # after keep_small

    directory = relay_directory(home)
    try:
        home.mkdir(mode=0o711, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        directory.chmod(0o700)
        lock = lock_exclusive(directory / "relay.lock")
    except OSError as error:
        raise CalabashError(f"cannot use {directory}: {error.strerror}", reason=Reason.NOT_PERMITTED) from error
    if lock is None:
        raise CalabashError(
            f"another relay uses {directory}",
            reason=Reason.CONFLICT,
            hint="stop the other relay; only one can serve the agent of a node",
        )
    relay = PluginRelay(
        agents=directory,
        kubelet=kubelet / "device-plugins",
        answer=answer,
        on_error=lambda error: log.warning(str(error)),
    )
    try:
        relay.start()
        while not stop.wait(TIDY_EVERY_S):
            give_back()
    finally:
        relay.stop()
        os.close(lock)


def main(words: Sequence[str] | None = None) -> int:
    """Run the relay until SIGTERM or SIGINT; return the exit status."""
    os.umask(0o077)
    keep_small()
    read = parser().parse_args(words)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        serve(read.home.absolute(), read.kubelet, stop)
    except CalabashError as error:
        print(f"error [{error.reason}]: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
