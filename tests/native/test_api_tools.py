"""Tests of the coverage page of the driver API, and of the C formatter."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cformat, reference_api = tool("cformat"), tool("reference_api")


def test_coverage_page_is_what_the_built_libraries_say() -> None:
    command = [sys.executable, "-m", "tools.reference_api", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}run `make docs` after a change of hooks or of the simulator"


def test_coverage_page_names_every_function_once_and_tells_served_from_unserved() -> None:
    page = reference_api.driver_api_page()
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", page, re.MULTILINE)
    names = [name for name, _ in rows]
    assert len(names) == len(set(names))
    assert set(names) == {row[1] for row in reference_api.table("cuda.tsv")} | {
        row[0] for row in reference_api.table("nvml.tsv")
    }
    cells = {name: [cell.strip() for cell in rest.split("|")] for name, rest in rows}
    assert cells["cuInit"][2:] == ["yes", "hooked"]
    assert cells["cuEventCreate"][2:] == ["yes", "passed through"]
    assert cells["cuGraphicsEGLRegisterImage"][2] == "no"
    assert cells["nvmlDeviceSetMigMode"][1] == "denied"


def test_per_thread_function_counts_as_served_when_its_plain_twin_is() -> None:
    inside = reference_api.served(reference_api.SIMGPU / "libcuda.so.1")
    assert {"cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds"} <= inside
    assert not {"cuEGLStreamConsumerConnect", "cuVDPAUCtxCreate_v2"} & inside


def test_formatter_lists_offenders_and_mends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.c", tmp_path / "bad.c"
    good.write_text("int one(void)\n{\n    return 1;\n}\n")
    bad.write_text("int two( void ) { return 2; }\n")
    monkeypatch.setattr(cformat, "tracked_sources", lambda: [good, bad])
    monkeypatch.setattr(cformat, "shown", str)
    monkeypatch.setattr(sys, "argv", ["cformat", "--check"])
    assert cformat.main() == 1
    listed = capsys.readouterr()
    assert listed.out == f"not formatted: {bad}\n"
    assert "1 of 2" in listed.err
    monkeypatch.setattr(sys, "argv", ["cformat"])
    assert cformat.main() == 0
    assert bad.read_text() == "int two(void)\n{\n    return 2;\n}\n"
    monkeypatch.setattr(sys, "argv", ["cformat", "--check"])
    assert cformat.main() == 0
