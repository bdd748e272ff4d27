"""Tests of ``make kube-demo``: its output, its use by hand as documented, and its clean-up."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.demo import SHORTFALL
from tests.kube.needs import need

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "try-kubernetes-on-a-laptop.md"
DEMO = [sys.executable, "-m", "tools.kube_demo"]


@pytest.fixture
def short() -> Iterator[Path]:
    """A temporary directory with a short path, because the path of a Unix socket is limited to 108 bytes."""
    made = Path(tempfile.mkdtemp(prefix="kd-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.slow
def test_no_limit_is_exceeded_by_what_was_measured(short: Path) -> None:
    """A share below the requested one is accepted, because programs that wait for a processor leave the card idle."""
    need(node=True)
    done = subprocess.run(
        DEMO,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(short)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    said = " ".join(done.stdout.split())
    if done.returncode == 0:
        assert re.search(
            r"every limit held: shares asked 50/30/20, got [\d.]+/[\d.]+/[\d.]+ percent; no pod above", said
        )
    else:
        assert "a limit was broken: " in said, done.stdout + done.stderr
        for broken in said.rpartition("a limit was broken: ")[2].split("; "):
            found = SHORTFALL.match(broken)
            assert found is not None, done.stdout + done.stderr
            assert 0 < float(found[1]) < float(found[2]), done.stdout
    assert "GangIncomplete" in said
    assert "NoCores: 0/1 nodes" in said
    assert re.search(r"evicted: \S+/\S+", said)
    assert "node1 2/2 NVIDIA A100-SXM4-40GB 30/" in said
    assert list(short.iterdir()) == []


@pytest.mark.slow
def test_demo_cluster_can_be_used_as_documented_and_ends_with_ctrl_c(short: Path) -> None:
    need(node=True)
    with subprocess.Popen(
        [*DEMO, "--stay"], cwd=ROOT, env=os.environ | {"TMPDIR": str(short)}, stdout=subprocess.PIPE, text=True
    ) as demo:
        try:
            assert demo.stdout is not None
            ways = next((line for line in demo.stdout if line.startswith("export KUBECONFIG=")), "")
            assert ways, "the demo ended"
            page = re.findall(r"^```\n(kubectl .*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
            done = subprocess.run(
                ["bash", "-uec", ways + page[0]], capture_output=True, text=True, timeout=100, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            filled = re.search(r"^(\d+)$", done.stdout, re.MULTILINE)
            assert filled is not None, done.stdout
            assert 7400 <= int(filled[1]) >> 20 <= 8000
            assert "calabash.dev/plan" in done.stdout
            assert re.search(r"^default +slice +Succeeded +node1", done.stdout, re.MULTILINE), "kubectl calabash ps"
        finally:
            demo.send_signal(signal.SIGINT)
        assert next(line for line in demo.stdout if not line.startswith("Ctrl-C")) == "ended\n"
        demo.send_signal(signal.SIGINT)  # as make and uv pass it on
        assert demo.wait(60) == 0
    assert list(short.iterdir()) == []


def test_where_no_cluster_can_run_it_says_so_in_a_line_with_a_hint(tmp_path: Path) -> None:
    done = subprocess.run(
        DEMO,
        cwd=ROOT,
        env=os.environ | {"CALABASH_KUBE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
