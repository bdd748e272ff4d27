"""``calabash sim``: traces and scenarios from the command line, with wrong input of every kind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.terminal import Terminal
from tests.daemons.world import until

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
NODES_HEAD = "sn,cpu_milli,memory_mib,gpu,model"
PODS_HEAD = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path / "none", tmp_path)
    yield made
    made.close()


@pytest.fixture
def openb(tmp_path: Path) -> tuple[str, ...]:
    """Write a small cluster and workload in the format of the openb trace; return the options that name them."""
    nodes = [f"node-{i:03},64000,262144,{(2, 4, 8)[i % 3]},{('T4', 'V100M16', 'G2')[i % 3]}" for i in range(40)]
    kinds = [
        (4000, 1, 1000, ""),
        (2000, 1, 300, ""),
        (8000, 0, 0, ""),
        (6000, 1, 500, "T4|V100M16"),
        (16000, 4, 1000, ""),
    ]
    pods = [
        f"pod-{i:04},{cpu},4096,{count},{milli},{spec},LS,Running,{i},{i + 5000},{i}"
        for i in range(300)
        for cpu, count, milli, spec in (kinds[i % len(kinds)],)
    ]
    (tmp_path / "nodes.csv").write_text("\n".join([NODES_HEAD, *nodes]) + "\n")
    (tmp_path / "pods.csv").write_text("\n".join([PODS_HEAD, *pods]) + "\n")
    return ("sim", "openb", "--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv"))


@pytest.mark.parametrize("target", ["--html", "--plot"])
def test_page_or_plot_without_the_library_for_it_is_refused_before_the_first_run(
    terminal: Terminal, openb: tuple[str, ...], tmp_path: Path, target: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfound = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'matplotlib' else found(name, *rest)\n"
    )
    terminal.environment["PYTHONPATH"] = str(tmp_path)
    said = terminal.refused(
        1, *openb, "--seeds", "1", target, str(tmp_path / "out.png"), "--results", str(tmp_path / "j")
    )
    assert "hint: pip install 'calabash[reports]'" in said
    assert not (tmp_path / "j").exists()


FIGURES = {"allocation_ratio_end", "allocation_ratio_at_100", "cpu_only_admitted_ratio", "decisions_per_s"}


def test_every_policy_and_seed_has_its_figures_in_the_json(
    terminal: Terminal, openb: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    done = terminal(*openb, "--placement", "pgb,fgd", "--seeds", "42-44", "--results", str(out))
    assert [line.split()[2] for line in done.stdout.splitlines()[1:]] == ["pgb", "fgd"]
    assert done.stderr == ""  # no progress bar on a stream that is no terminal
    body = json.loads(out.read_text())
    runs = {(r["policy"], r["seed"]): r for r in body["runs"]}
    assert set(runs) == {(p, s) for p in ("pgb", "fgd") for s in (42, 43, 44)}
    for run in runs.values():
        assert set(run) >= FIGURES
        assert 0.5 < run["allocation_ratio_end"] <= 1
        assert 0 < run["allocation_ratio_at_100"] <= 1
        assert 0 < run["cpu_only_admitted_ratio"] <= 1
        assert run["decisions_per_s"] > 0
    assert not list(tmp_path.glob("*.partial.jsonl"))


def figures(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    runs = json.loads(path.read_text())["runs"]
    return {(r["policy"], r["seed"]): {k: v for k, v in r.items() if k != "decisions_per_s"} for r in runs}


def test_the_same_seed_gives_the_same_figures_however_many_run_at_a_time(
    terminal: Terminal, openb: tuple[str, ...], tmp_path: Path
) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    for out, jobs in ((first, "1"), (second, "2")):
        terminal(*openb, "--placement", "fgd,random", "--seeds", "1,2", "--jobs", jobs, "--results", str(out))
    drop = {"elapsed_s", "wall_s", "seconds", "decision_p50_us", "decision_p99_us"}
    one, two = figures(first), figures(second)
    assert set(one) == set(two)
    for key, run in one.items():
        assert {k: v for k, v in run.items() if k not in drop} == {k: v for k, v in two[key].items() if k not in drop}


def test_requests_that_depart_and_defragmentation(terminal: Terminal, openb: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ("--seeds", "1", "--jobs", "1", "--results", str(out))
    terminal(*openb, *words, "--churn", "--load", "0.9", "--defrag", "--placement", "pgb,fgd")
    assert {r["policy"] for r in json.loads(out.read_text())["runs"]} == {"pgb", "fgd"}
    assert "--churn" in terminal.refused(2, *openb, *words, "--load", "0.9")
    assert "--churn" in terminal.refused(2, *openb, *words, "--defrag")
    terminal.refused(2, *openb, *words, "--churn", "--load", "-1")
    terminal.refused(2, *openb, *words, "--churn", "--load", "nan")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(
    terminal: Terminal, openb: tuple[str, ...], tmp_path: Path, jobs: str
) -> None:
    out, partial = tmp_path / "out.json", tmp_path / "out.json.partial.jsonl"
    words = (*openb, "--placement", "fgd", "--seeds", "1-60", "--jobs", jobs, "--results", str(out))
    job = terminal.start(*words)

    def kept() -> dict[int, float]:
        lines = partial.read_text().splitlines() if partial.exists() else []
        return {r["seed"]: r["decisions_per_s"] for line in lines for r in (json.loads(line)["result"],)}

    until(lambda: partial.exists() and partial.read_text().count("\n") >= 2, what="two runs to be done")
    job.signal(signal.SIGINT)
    assert job.code() == 130
    assert job.text.startswith("interrupted; completed runs are saved in ")
    assert len(job.text.splitlines()) == 1
    assert not out.exists()
    before = kept()
    assert 2 <= len(before) < 60
    terminal(*words)
    after = {r["seed"]: r["decisions_per_s"] for r in json.loads(out.read_text())["runs"]}
    assert set(after) == set(range(1, 61))
    # A measured speed would differ in a second run: so these were not run again.
    assert {seed: after[seed] for seed in before} == before
    assert not partial.exists()


def test_ctrl_c_at_a_terminal_reaches_workers_that_are_just_starting_and_they_say_nothing(
    terminal: Terminal, openb: tuple[str, ...], tmp_path: Path
) -> None:
    words = ("--placement", "fgd", "--seeds", "1-60", "--jobs", "4", "--results", str(tmp_path / "out.json"))
    job = terminal.start(*openb, *words, own_group=True)
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    until(lambda: len(children.read_text().split()) >= 4, what="workers to start")
    os.killpg(job.pid, signal.SIGINT)
    assert job.code() == 130
    assert job.text.startswith("interrupted; ")
    assert len(job.text.splitlines()) == 1, job.text


def test_a_run_cut_off_in_the_middle_of_a_line_goes_on(
    terminal: Terminal, openb: tuple[str, ...], tmp_path: Path
) -> None:
    out, partial = tmp_path / "out.json", tmp_path / "out.json.partial.jsonl"
    words = (*openb, "--placement", "fgd", "--seeds", "1-3", "--jobs", "1", "--results", str(out))
    partial.write_text('{"experiment": "x", "resu')
    terminal(*words)
    assert len(json.loads(out.read_text())["runs"]) == 3
    partial.write_text("nonsense\nand more\n")
    assert f"{partial}:1: " in terminal.refused(1, *words)


def edited(path: str, line: int, change: Callable[[str], str]) -> None:
    lines = Path(path).read_text().splitlines()
    lines[line - 1] = change(lines[line - 1])
    Path(path).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (1, lambda text: text.replace("gpu_milli", "gpu_mille")),
        (5, lambda text: text.replace(",4096,", ",-1,")),
        (5, lambda text: text.replace(",4096,", ",many,")),
        (5, lambda text: text.replace(",4096,", ",1e99,")),
        (5, lambda text: text.replace(",4096,", ",,")),
        (5, lambda text: text[:12]),
        (5, lambda text: text.replace("T4|V100M16", "T4|ABACUS")),
        (3, lambda text: text.replace(",1,300,", ",2,300,")),
        (3, lambda text: text.replace("pod-0001", "pod-0000")),
        (301, lambda text: text + ",more,and,more"),
    ],
)
def test_a_broken_trace_is_named_with_file_line_and_a_hint(
    terminal: Terminal, openb: tuple[str, ...], line: int, change: Callable[[str], str]
) -> None:
    edited(openb[-1], line, change)
    assert f"{openb[-1]}:{line}: " in terminal.refused(1, *openb, "--seeds", "1", "--placement", "fgd")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"\n\n\n", NODES_HEAD.encode(), b"a" * 100_000])
def test_a_file_that_is_no_trace_is_named(terminal: Terminal, openb: tuple[str, ...], content: bytes) -> None:
    Path(openb[3]).write_bytes(content)
    assert openb[3] in terminal.refused(1, *openb, "--seeds", "1", "--placement", "fgd")


def test_files_that_are_not_there_or_are_folders(terminal: Terminal, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    for words in (
        ("openb", "--nodes", missing, "--pods", missing),
        ("trace", "--nodes", f"{missing}.csv", "--requests", missing),
        ("openb", "--nodes", str(tmp_path), "--pods", missing),
        ("scenario", missing),
        ("scenario", str(tmp_path)),
    ):
        done = terminal("sim", *words, code=None)
        assert done.returncode in (1, 2, 3)
        assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]


@pytest.mark.parametrize("seeds", ["", "x", "9-3", "1-", "-1", "1..3", "1-99999999"])
def test_seeds_that_are_none_are_wrong_usage(terminal: Terminal, openb: tuple[str, ...], seeds: str) -> None:
    terminal.refused(2, *openb, f"--seeds={seeds}")


def test_an_unknown_policy_is_told_the_known_ones(terminal: Terminal, openb: tuple[str, ...]) -> None:
    assert "pgb" in terminal.refused(2, *openb, "--placement", "pgb,magic", "--seeds", "1")


def test_output_that_cannot_be_written_is_told_before_anything_runs(
    terminal: Terminal, openb: tuple[str, ...], tmp_path: Path
) -> None:
    # So many runs that the time limit of a command would be over before a late answer came.
    words = (*openb, "--seeds", "1-3000", "--jobs", "1", "--placement", "fgd")
    terminal.refused(3, *words, "--results", str(tmp_path / "no" / "out.json"))
    assert "directory" in terminal.refused(2, *words, "--results", str(tmp_path))
    terminal.refused(2, *words, "--plot", str(tmp_path / "out.bmp"))


def test_page_and_plots_are_written(terminal: Terminal, openb: tuple[str, ...], tmp_path: Path) -> None:
    html, png, svg = (tmp_path / name for name in ("out.html", "out.png", "out.svg"))
    words = (*openb, "--seeds", "1", "--placement", "fgd,random", "--jobs", "1")
    terminal(*words, "--html", str(html), "--plot", str(png))
    terminal(*words, "--plot", str(svg))
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
    assert "fgd" in html.read_text()


def test_a_scenario_that_holds_ends_with_0_and_one_that_differs_with_1(terminal: Terminal, tmp_path: Path) -> None:
    good = SCENARIOS / "a_single_request_starts_on_a_free_device.scenario"
    assert terminal("sim", "scenario", str(good)).stdout.startswith("ok    ")
    assert terminal("sim", "scenario", "--quiet", str(good)).stdout == ""
    wrong = tmp_path / "wrong.scenario"
    wrong.write_text(good.read_text().replace("gpu-1:0", "gpu-1:1"))
    done = terminal("sim", "scenario", "-q", str(good), str(wrong), code=1)
    assert f"FAIL  {wrong}" in done.stdout
    assert "1 of 2 scenarios differ" in done.stderr


def test_a_broken_scenario_is_named_with_file_line_and_a_hint(terminal: Terminal, tmp_path: Path) -> None:
    broken = tmp_path / "broken.scenario"
    broken.write_text("rule   something\nnodes  gpu-1: x\n")
    assert f"{broken}:2: " in terminal.refused(1, "sim", "scenario", str(broken))
