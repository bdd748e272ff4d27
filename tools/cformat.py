"""Format the C sources that git tracks, or check their format.

    python -m tools.cformat [--check]

With `--check` nothing is written; the files that would change are listed and the exit code is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tracked_sources() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--", "native/*.c", "native/*.h", "tests/native/programs/*.c"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [path for name in listing.split("\0") if name and (path := ROOT / name).exists()]


def formatted(path: Path) -> bytes:
    command = ["clang-format", f"--style=file:{ROOT / '.clang-format'}", "--fail-on-incomplete-format", str(path)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(prog="cformat", description="format the C sources that git tracks")
    parser.add_argument("--check", action="store_true", help="list files that differ; write nothing")
    check = parser.parse_args().check
    offenders = []
    sources = tracked_sources()
    for path in sources:
        text = formatted(path)
        if text != path.read_bytes():
            offenders.append(path)
            if not check:
                path.write_bytes(text)
    for path in offenders:
        print(f"{'not formatted' if check else 'formatted'}: {shown(path)}")
    if check and offenders:
        print(
            f"error: {len(offenders)} of {len(sources)} C sources are not formatted\nhint: make format", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
