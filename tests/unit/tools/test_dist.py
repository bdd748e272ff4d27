"""Files of a release: the chart's archive has the same bytes for the same files, and the sums can be checked."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

from tools import dist

import calabash


def test_the_archive_of_the_chart_has_all_its_files_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(dist.CHART, tmp_path / "calabash"))
    (tmp_path / "other").mkdir()
    made = dist.write_chart(tmp_path)
    assert made.read_bytes() == dist.write_chart(tmp_path / "other", copy).read_bytes()
    assert made.name == f"calabash-{calabash.__version__}.tgz"
    with tarfile.open(made) as archive:
        names = archive.getnames()
        read = archive.extractfile("calabash/Chart.yaml")
        assert read is not None
        assert read.read() == (dist.CHART / "Chart.yaml").read_bytes()
    files = {f"calabash/{path.relative_to(dist.CHART)}" for path in dist.CHART.rglob("*") if path.is_file()}
    assert set(names) == files
    assert names == sorted(names)


def test_sums_are_checked_by_sha256sum_and_find_a_changed_file(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tgz"):
        (tmp_path / name).write_text(name)
    assert [line.split()[1] for line in dist.write_sums(tmp_path).read_text().splitlines()] == ["a.tgz", "b.whl"]
    check = ["sha256sum", "--check", "--strict", dist.SUMS]
    assert subprocess.run(check, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    dist.write_sums(tmp_path)
    (tmp_path / "a.tgz").write_text("changed")
    assert subprocess.run(check, cwd=tmp_path, check=False, capture_output=True).returncode == 1
