"""Build everything that a release has, in ``dist``: ``make dist``.

The result is a wheel for each machine for which there is a compiler, the source distribution, the image with its SBOM, the
chart, and ``SHA256SUMS``, which is what a release is signed by. The same tree and the same packages give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import re
import shutil
import sys
import tarfile
from pathlib import Path

from tools import image, wheel
from tools.debian import PackagesError

ROOT = wheel.ROOT
CHART = ROOT / "charts" / "calabash"
SUMS = "SHA256SUMS"


def build(out: Path) -> list[Path]:
    """Build all files in an empty directory and return their paths. Raises BuildError, PackagesError."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    machines = image.possible_machines()
    for machine in machines:
        wheel.build(out, machine)
    wheel.run(wheel.uv(), "build", "--quiet", "--sdist", "--out-dir", str(out), str(ROOT))
    (out / ".gitignore").unlink(missing_ok=True)  # of uv
    write_chart(out)
    image.build(out, machines)
    return [*sorted(out.iterdir()), write_sums(out)]


def write_chart(out: Path, chart: Path = CHART) -> Path:
    """Pack a chart as ``helm package`` does, with the same bytes for the same files; return the archive's path."""
    version = re.search(r"^version: *\"?([^\"\s]+)", (chart / "Chart.yaml").read_text(), re.MULTILINE)
    if version is None:
        raise wheel.BuildError(f"{chart}/Chart.yaml has no version")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for path in chart.rglob("*") if path.is_file()):
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{chart.name}/{path.relative_to(chart)}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    target = out / f"{chart.name}-{version[1]}.tgz"
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return target


def write_sums(directory: Path) -> Path:
    """Write the SHA-256 of all files of a directory, as ``sha256sum --check`` reads them; return the file's path."""
    files = sorted(path for path in directory.iterdir() if path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (directory / SUMS).write_text("".join(lines))
    return directory / SUMS


def main() -> int:
    """Build a release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="directory for the results; it is emptied first"
    )
    try:
        for path in build(parser.parse_args().out):
            print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    except (wheel.BuildError, PackagesError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
