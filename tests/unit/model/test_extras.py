"""Extras: commands of a plain installation import none of their packages, others end with an error that names the extra."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from calabash.model import extras
from calabash.model.errors import CalabashError

ROOT = Path(__file__).resolve().parents[3]
DISTRIBUTIONS = {"fpdf": "fpdf2", "google.protobuf": "protobuf", "grpc": "grpcio", "jwt": "pyjwt"}  # by imported name
# Daemons and commands of a plain installation, with the processes that they start.
PLAIN = (
    "calabash.adapters.gpu.nvidia.driver",
    "calabash.cli.demo.command",
    "calabash.cli.main",
    "calabash.cli.pool.device",
    "calabash.cli.pool.lifecycle",
    "calabash.cli.pool.sim",
    "calabash.cli.pool.top",
    "calabash.cli.pool.view",
    "calabash.cli.run.become",
    "calabash.cli.pool.sim_replay",
    "calabash.cli.tenancy.tenant",
    "calabash.node.arbiter.main",
    "calabash.node.devices.probe_program",
    "calabash.node.metering.end_recorder",
    "calabash.node.ports.entry_keeper",
    "calabash.platform.billing.rating_process",
    "calabash.pool.daemon",
    "calabash.pool.jobs.keeper",
)
_WITHOUT_EXTRAS = """
import sys
from importlib import import_module

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def without_extras(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter in which no package of an extra can be imported."""
    blocked = {package.partition(".")[0] for packages in extras.EXTRAS.values() for package in packages}
    text = _WITHOUT_EXTRAS.format(blocked=blocked) + program
    return subprocess.run(
        [sys.executable, "-c", text, *words], capture_output=True, text=True, timeout=120, check=False
    )


def test_commands_of_a_plain_installation_import_nothing_of_an_extra() -> None:
    done = without_extras("for name in sys.argv[1:]: import_module(name)", *PLAIN)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("serve", "planner"), "kubernetes"),
        (("serve", "agent", "--node", "gpu-1"), "kubernetes"),
        (("serve", "admission"), "kubernetes"),
        (("remote", "server", "up"), "remote"),
        (("remote", "server", "token", "list"), "remote"),
        (("net", "up"), "networks"),
        (("up", "--console", "127.0.0.1:0"), "console"),
    ],
)
def test_a_command_without_its_extra_names_it_in_one_error(
    words: tuple[str, ...], extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALABASH_HOME", str(tmp_path))
    done = without_extras("from calabash.cli.main import main; main()", *words)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines() == [
        f"error: this command needs the packages of the extra {extra!r}, which are not installed",
        f"hint: pip install 'calabash[{extra}]'",
    ]


def test_extras_have_the_packages_that_pyproject_lists() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def names(extra: str) -> set[str]:
        found = set()
        for requirement in listed[extra]:
            name = requirement.partition(">")[0].partition("[")[0]
            inner = requirement.removeprefix("calabash[").removesuffix("]").split(",")
            found |= {n for one in inner for n in names(one)} if name == "calabash" else {name}
        return found

    known = {extra: {DISTRIBUTIONS.get(name, name) for name in packages} for extra, packages in extras.EXTRAS.items()}
    assert {extra: names(extra) for extra in known} == known
    assert names("all") == set().union(*known.values())


def test_an_extra_that_is_not_installed_is_required_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    extras.require("networks")
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "pyroute2" else object())
    with pytest.raises(CalabashError, match="the extra 'networks'") as error:
        extras.require("networks")
    assert error.value.hint == "pip install 'calabash[networks]'"


def test_a_module_that_belongs_to_no_extra_is_not_explained() -> None:
    assert extras.missing_import(ModuleNotFoundError("No module named 'x'", name="x")) is None
    assert extras.missing_import(ImportError("cannot import name 'x'")) is None


def test_the_default_placement_policy_places_requests_without_its_extra() -> None:
    """The policy would learn from its first requests if it could."""
    program = """
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.policies.pgb import LEARN_FIRST, PgbPolicy

cards = (GpuSpec(model="G2"),) * 8
nodes = [NodeSpec(name=name, cpu_milli=900_000, memory_mib=900_000, gpus=cards) for name in "abcdefgh"]
engine = Engine(Cluster(nodes), PgbPolicy())
slice_ = Shape(cpu_milli=1000, memory_mib=1000, gpu_count=1, gpu_milli=200)
print(sum(engine.decide(slice_) is not None for _ in range(LEARN_FIRST + 10)))
"""
    done = without_extras(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "210\n"
