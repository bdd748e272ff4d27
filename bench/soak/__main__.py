"""Run a soak: ``python -m bench.soak --minutes 60 --seed 7``. Ends with 0 without violations; logs to build/soak/SEED.log."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from pathlib import Path

from bench.soak.soak import Soak

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, help="of faults and loads; drawn and printed when it is left out")
    parser.add_argument(
        "--short", action="store_true", help="fewer actors, faults close to each other: for a machine with other work"
    )
    parser.add_argument("--no-networks", action="store_true", help="without OVN and tenants' networks")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write soak.json and soak.md there")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts programs in the background with SIGINT ignored
        signal.signal(number, lambda _number, _frame: sys.exit(130))
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    place = ROOT / "build" / "soak"
    place.mkdir(parents=True, exist_ok=True)
    log = place / f"{seed}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.log"
    soak = Soak(seed=seed, seconds=options.minutes * 60, short=options.short, networks=not options.no_networks, log=log)
    found = soak.run()
    if options.save:
        soak.save(options.save)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
