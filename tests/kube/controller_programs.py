"""Workload controllers of other projects, unmodified, built once from pinned Go modules and kept in a cache.

``python -m tests.kube.controller_programs`` builds what is missing and prints the time of each step; ``tools/bootstrap
--tests`` calls it after ``tests.kube.programs``, whose kubectl renders the manifests. Each controller is its own main
program. All are required by one module (``workload/go.mod``), so that the libraries that they share are compiled once.

Beside each program, the cache has the objects that its module's manifests contain and that a test cluster needs:
CustomResourceDefinitions and webhook configurations. Nothing of them is in this repository.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml
from tests.kube import programs
from tests.kube.programs import MissingError

SOURCES = Path(__file__).resolve().parent / "workload"
_FLAGS = "-trimpath -buildvcs=false -mod=readonly"
_KEPT = ("CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


@dataclass(frozen=True, slots=True)
class Source:
    """A controller to build.

    Args:
        name: name of its program in the cache; the manifests are ``<name>.yaml``.
        module: its Go module.
        package: folder of its main package in the module; "" for the module's own.
        manifests: folders of the module that ``kubectl kustomize`` renders.
    """

    name: str
    module: str
    package: str
    manifests: tuple[str, ...]


SOURCES_OF_CONTROLLERS = (
    Source("jobset", "sigs.k8s.io/jobset", "", ("config/default",)),
    Source("lws", "sigs.k8s.io/lws", "cmd", ("config/default",)),
    Source(
        "trainer",
        "github.com/kubeflow/trainer/v2",
        "cmd/trainer-controller-manager",
        ("manifests/base/crds", "manifests/base/webhook"),
    ),
    Source("kuberay", "github.com/ray-project/kuberay/ray-operator", "", ("config/default",)),
)


def directory() -> Path:
    """Return the directory of the programs, whether all are built yet or not.

    Without Go, it is any complete directory in the cache that was built from the same sources.
    """
    name = f"controllers-{programs.key(SOURCES, f'{SOURCES_OF_CONTROLLERS} {_FLAGS}')}"
    version = programs.go_version()
    if version is not None:
        return programs.cache() / f"{name}-{version}"
    for candidate in sorted(programs.cache().glob(f"{name}-*")):
        if _whole(candidate):
            return candidate
    raise MissingError("Go is not installed, and no controllers built from these sources are in the cache")


def found() -> Path:
    """Return the directory with all the programs. Raises MissingError if one is missing."""
    where = directory()
    if not _whole(where):
        raise MissingError(f"controllers are not built in {where}; hint: tools/bootstrap --tests")
    return where


def version(module: str) -> str:
    """Return the version of a module that is built."""
    for line in (SOURCES / "go.mod").read_text().splitlines():
        words = line.removeprefix("require").split()
        if words[:1] == [module]:
            return words[1]
    raise MissingError(f"{SOURCES / 'go.mod'} does not require {module}")


def build() -> Path:
    """Build the missing programs; return their directory. If another process builds them, wait for that process."""
    where = directory()
    if _whole(where):
        return where
    where.mkdir(parents=True, exist_ok=True)
    print(f"workload controllers, built from source into {where}: usually 3 to 5 minutes on two idle cores", flush=True)
    with (where / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for source in SOURCES_OF_CONTROLLERS:
            if not (where / source.name).exists():
                _compile(source, where)
            if not (where / f"{source.name}.yaml").exists():
                _render(source, where)
    return where


def _whole(where: Path) -> bool:
    return all((where / name).exists() for one in SOURCES_OF_CONTROLLERS for name in (one.name, f"{one.name}.yaml"))


def _compile(source: Source, where: Path) -> None:
    print(f"  building {source.name:<28}", end=" ", flush=True)
    began = time.monotonic()
    unfinished = where / f".{source.name}.{os.getpid()}"
    words = ["build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", str(unfinished)]
    try:
        _go(*words, "/".join(filter(None, (source.module, source.package))))
    except MissingError:
        unfinished.unlink(missing_ok=True)
        print("failed", flush=True)
        raise
    unfinished.rename(where / source.name)
    print(f"{time.monotonic() - began:6.1f} s", flush=True)


def _render(source: Source, where: Path) -> None:
    """Write the definitions and webhook configurations of a controller, as its project's manifests have them."""
    module = _go("list", "-m", "-f", "{{.Dir}}", source.module)
    objects = []
    for folder in source.manifests:
        # In the folder: kustomize takes a path that begins with the name of a host for an address.
        told = _run([str(programs.found() / "kubectl"), "kustomize", "."], Path(module) / folder)
        objects += [one for one in yaml.load_all(told, yaml.CSafeLoader) if one and one["kind"] in _KEPT]
    unfinished = where / f".{source.name}.yaml.{os.getpid()}"
    unfinished.write_text(yaml.dump_all(objects, Dumper=yaml.CSafeDumper, sort_keys=False))
    unfinished.rename(where / f"{source.name}.yaml")


def _go(*words: str) -> str:
    return _run(["nice", "-n", "15", "go", *words], SOURCES)


def _run(command: list[str], where: Path) -> str:
    environment = dict(os.environ, CGO_ENABLED="0", GOFLAGS=_FLAGS)
    told = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise MissingError(f"{' '.join(command)} in {where} ended with {told.returncode}:\n{told.stderr.strip()}")
    return told.stdout.strip()


if __name__ == "__main__":
    sys.exit(programs.main(build))
