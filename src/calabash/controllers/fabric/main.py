"""Process of the fabric controller: ``python -I -m calabash.controllers.fabric``.

Moves endpoints to the partitions of the tenants that use their devices. The pool runs it if ``pool.toml`` says so. It may be
killed at any point.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path

from calabash.adapters.pool.client import ApiClient, PoolClient
from calabash.controllers.fabric.controller import FabricController
from calabash.controllers.fabric.settings import read_fabric
from calabash.model.errors import CalabashError, Reason

FABRIC_FILE = "fabric.toml"


def main(words: list[str] | None = None) -> int:
    """Run until the process is told to stop; return the exit status.

    Errors at the start are printed as two lines on stderr; the exit status is then 1.
    """
    parser = argparse.ArgumentParser(prog="python -I -m calabash.controllers.fabric", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help=f"the pool's home, which has {FABRIC_FILE}")
    parser.add_argument("--supervised", action="store_true", help="end at the end of standard input")
    arguments = parser.parse_args(words)
    try:
        run_fabric_controller(
            PoolClient(arguments.home), arguments.home / FABRIC_FILE, once=False, supervised=arguments.supervised
        )
    except CalabashError as error:
        print(f"error [{error.reason}]: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1
    return 0


def run_fabric_controller(pool: ApiClient, file: Path, *, once: bool, supervised: bool = False) -> None:
    """Reconcile all fabrics until a signal arrives.

    Args:
        once: carry out one round only.
        supervised: also end when standard input is closed, which happens when the process that started this one ends.

    Raises:
        CalabashError: the file is invalid or names no fabric.
    """
    settings = read_fabric(file)
    drivers = settings.drivers(file.absolute().parent)
    if not drivers:
        raise CalabashError(f"{file} names no fabric", reason=Reason.BAD_FILE, hint="[infiniband], [roce], [nvlink]")
    controller = FabricController(pool, drivers, settings.endpoints(), every_s=settings.every_s, now_s=time.monotonic)
    if once:
        controller.step()
        return
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if supervised:
        threading.Thread(target=_until_input_ends, args=(stop,), name="input", daemon=True).start()
    controller.run(stop)


def _until_input_ends(stop: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    stop.set()
