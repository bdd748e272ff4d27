"""Helm for tests, built once from a pinned Go module, and the objects that a chart renders to.

``python -m tests.kube.charts`` builds Helm if it is missing; ``tools/bootstrap --tests`` calls that. The program is
kept in the cache of the Kubernetes programs.
"""

from __future__ import annotations

import copy
import fcntl
import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube import programs
from tests.kube.programs import MissingError

SOURCES = Path(__file__).resolve().parent / "helm"
CHART = Path(__file__).resolve().parents[2] / "charts" / "calabash"
NAMESPACE = "calabash-system"
_PACKAGE = "helm.sh/helm/v4/cmd/helm"
Manifest = dict[str, Any]


def directory() -> Path:
    """Return the directory in which Helm is built, whether it is built yet or not.

    Without Go, it is any directory in the cache that was built from the same sources.
    """
    name = f"helm-{programs.key(SOURCES)}"
    version = programs.go_version()
    if version is not None:
        return programs.cache() / f"{name}-{version}"
    for candidate in sorted(programs.cache().glob(f"{name}-*")):
        if (candidate / "helm").exists():
            return candidate
    raise MissingError("Go is not installed, and no helm built from these sources is in the cache")


def found() -> Path:
    """Return the path of the built Helm program."""
    path = directory() / "helm"
    if not path.exists():
        raise MissingError(f"helm is not built in {path.parent}; hint: tools/bootstrap --tests")
    return path


def build() -> Path:
    """Build Helm if it is missing, and return its path. If another process is building it, wait for that process.

    Go's build cache keeps the packages that Helm shares with kubectl, so that they are compiled once.
    """
    path = directory() / "helm"
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _compile(path)
    return path


def _compile(path: Path) -> None:
    print(f"  building {'helm':<28}", end=" ", flush=True)
    began = time.monotonic()
    unfinished = path.with_name(f".helm.{os.getpid()}")
    environment = dict(os.environ, CGO_ENABLED="0", GOFLAGS="-trimpath -buildvcs=false -mod=readonly")
    command = ["nice", "-n", "15", "go", "build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", str(unfinished)]
    told = subprocess.run(
        [*command, _PACKAGE], cwd=SOURCES, env=environment, capture_output=True, text=True, check=False
    )
    if told.returncode != 0:
        unfinished.unlink(missing_ok=True)
        print("failed", flush=True)
        raise MissingError(f"go build {_PACKAGE} ended with {told.returncode}:\n{told.stderr.strip()}")
    unfinished.rename(path)
    print(f"{time.monotonic() - began:6.1f} s", flush=True)


def need_helm() -> None:
    """Skip the calling test if Helm is missing; fail it if ``CALABASH_KUBE=required``, as in CI."""
    try:
        found()
    except MissingError as missing:
        if os.environ.get("CALABASH_KUBE") == "required":
            pytest.fail(f"no helm for tests: {missing}")
        pytest.skip(f"no helm for tests: {missing}")


def helm(*words: str, values: Manifest | None = None, kubeconfig: Path | None = None, timeout_s: float = 120) -> str:
    """Run helm with these values and return its output. Raises RuntimeError with helm's error message."""
    command = [str(found()), *words, *(["--values", "-"] if values is not None else [])]
    environment = {**os.environ, "HELM_NAMESPACE": NAMESPACE, "KUBECONFIG": str(kubeconfig or os.devnull)}
    told = subprocess.run(
        command,
        input=yaml.safe_dump(values or {}),
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if told.returncode != 0:
        raise RuntimeError(told.stderr.strip() or told.stdout.strip())
    return told.stdout


def render(values: Manifest | None = None) -> list[Manifest]:
    """Return all objects that the chart renders with these values, including its CustomResourceDefinitions."""
    return copy.deepcopy(_rendered(json.dumps(values or {}, sort_keys=True)))


@cache
def _rendered(values: str) -> list[Manifest]:
    text = helm("template", "calabash", str(CHART), "--include-crds", values=json.loads(values))
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """Return the object of that kind and name."""
    (found_one,) = (m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name)
    return found_one


if __name__ == "__main__":
    sys.exit(programs.main(build))
