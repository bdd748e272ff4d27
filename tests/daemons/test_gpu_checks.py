"""Checks for a machine with a real card, run on a simulated one: they need no attendance and report their measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_remote_cards_are_checked_by_the_product_s_own_commands(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "tests/gpu/remote.py", "--quick", "--json", str(tmp_path / "remote.json")],
        cwd=ROOT,
        env={**os.environ, "BENCH_CARD": "sim", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = {f["name"]: f["value"] for f in json.loads((tmp_path / "remote.json").read_text())["figures"]}
    assert all(figures[f"{way}: launches done"] > 0 for way in ("slice", "brokered", "remote"))
    assert figures["brokered: memory over the cap"] == figures["remote: memory over the cap"] == 0
    assert figures["remote: refusals at the cap"] >= 1


def test_without_a_card_the_script_says_so_and_ends_well(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    for name in ("bash", "dirname", "mkdir", "tee", "grep"):
        (empty / name).symlink_to(next(p for d in ("/bin", "/usr/bin") if (p := Path(d) / name).exists()))
    done = subprocess.run(
        [str(ROOT / "tests" / "gpu" / "run.sh")],
        env={"PATH": str(empty), "OUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "nothing was checked" in done.stdout) == (0, True), done.stderr


def test_script_runs_on_a_simulated_card_and_tells_what_it_measured(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(ROOT / "tests" / "gpu" / "run.sh"), "facts", "limits"],
        env={**os.environ, "BENCH_CARD": "sim", "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu checks: all ok" in (tmp_path / "summary.txt").read_text()
    figures = {
        figure["name"]: figure["value"]
        for name in ("facts", "limits")
        for figure in json.loads((tmp_path / f"{name}.json").read_text())["figures"]
    }
    assert figures["memory over the cap"] == 0
    assert figures["memory of an empty context"] > 0
    assert figures["8 GiB: memory free meanwhile"] >= 8
    functions = (tmp_path / "functions.txt").read_text().split()
    assert {"cuInit", "cuCheckpointProcessRestore", "nvmlDeviceGetMemoryInfo"} <= set(functions)


def test_kit_s_python_is_used_and_a_missing_wheel_ends_the_script(tmp_path: Path) -> None:
    (tmp_path / "kit" / "wheels").mkdir(parents=True)
    done = subprocess.run(
        [str(ROOT / "tests" / "gpu" / "run.sh"), "facts"],
        env={**os.environ, "BENCH_CARD": "sim", "OUT": str(tmp_path / "out"), "GPU_KIT": str(tmp_path / "kit")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1
    assert "the installation failed" in done.stdout
    assert not (tmp_path / "out" / "facts.json").exists()
