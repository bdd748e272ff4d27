"""Programs of a real Kubernetes, built once from pinned Go modules and kept in a cache.

``python -m tests.kube.programs`` builds the missing programs and prints the time of each step; ``tools/bootstrap
--tests`` calls it. A directory of the cache is named by a hash of everything that determines the build: module files,
sources, Go's version and the machine. A program is built under another name and then renamed. A program that exists is
therefore complete, and an interrupted build continues where it stopped. If all programs exist, nothing is downloaded
and Go is not needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "cluster"
KUBERNETES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
_FLAGS = "-trimpath -buildvcs=false -mod=readonly"
_TAGS = "grpcnotrace"  # without this tag the linker keeps every method of every type
_FORGOTTEN_S = 30 * 86400
_CONTAINERD = "github.com/containerd/containerd/v2"


@dataclass(frozen=True, slots=True)
class Program:
    """A program to build: its Go package, and for a program with C code the selected build tags."""

    name: str
    package: str
    tags_c: str = ""


BUILT = (
    Program("kube", "./cmd/kube"),
    Program("containerd", "./cmd/containerd"),
    Program("containerd-shim-runc-v2", f"{_CONTAINERD}/cmd/containerd-shim-runc-v2"),
    Program("ctr", f"{_CONTAINERD}/cmd/ctr"),
)
# Debian's serves as well and costs nothing; built where it is not installed, with pkg-config and the headers of libseccomp,
# for containerd asks for its filters. Pods with users of their own need one from 1.2 on, which Debian 12 has not.
RUNC = Program("runc", "github.com/opencontainers/runc", tags_c=",seccomp")


class MissingError(Exception):
    """The programs are not built; the text says how to build them."""


def cache() -> Path:
    """Return the directory of built programs; ``CALABASH_KUBE_CACHE`` overrides it."""
    chosen = os.environ.get("CALABASH_KUBE_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calabash" / "kube"


def key(sources: Path = SOURCES, how: str = "") -> str:
    """Return the name of a build: a hash of module files, sources, machine and build settings."""
    digest = hashlib.sha256(f"{platform.system()} {platform.machine()}{how}".encode())
    for path in (sources / "go.mod", sources / "go.sum", *sorted(sources.rglob("*.go"))):
        digest.update(f"\n{path.relative_to(sources)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def go_version() -> str | None:
    """Return the version of Go that would build these modules, as Go itself selects it; None if Go is not installed."""
    if shutil.which("go") is None:
        return None
    told = subprocess.run(["go", "env", "GOVERSION"], cwd=SOURCES, capture_output=True, text=True, check=False)
    return told.stdout.strip() or None


def _whole(directory: Path) -> bool:
    return all((directory / program.name).exists() for program in needed())


def needed() -> tuple[Program, ...]:
    """Return the programs that this machine needs."""
    return BUILT if shutil.which("runc") else (*BUILT, RUNC)


def directory() -> Path:
    """Return the directory in which the programs are built, whether all are built yet or not.

    Without Go, it is any complete directory in the cache that was built from the same sources.
    """
    version, name = go_version(), key(SOURCES, f"{BUILT} {RUNC} {_FLAGS} {_TAGS} {_linker_flags()}")
    if version is not None:
        return cache() / f"{name}-{version}"
    for candidate in sorted(cache().glob(f"{name}-*")):
        if _whole(candidate):
            return candidate
    raise MissingError("Go is not installed, and no programs built from these sources are in the cache")


def found() -> Path:
    """Return the directory with all the programs. Raises MissingError if one is missing."""
    where = directory()
    if not _whole(where):
        raise MissingError(f"Kubernetes is not built in {where}; hint: tools/bootstrap --tests")
    os.utime(where)
    return where


def runc(programs: Path) -> Path:
    """Return the program that starts containers: the installed runc or, if there is none, the one built here."""
    installed = shutil.which("runc")
    return Path(installed) if installed else programs / RUNC.name


def runc_for_users(programs: Path) -> Path | None:
    """Return a runc that supports user namespaces of pods (1.2 or later); None if there is none."""
    return next((path for path in (runc(programs), programs / RUNC.name) if _maps_users(path)), None)


def _maps_users(path: Path) -> bool:
    try:
        features = json.loads(subprocess.run([str(path), "features"], capture_output=True, check=False).stdout)
    except (OSError, ValueError):
        return False
    return bool(features.get("linux", {}).get("mountExtensions", {}).get("idmap", {}).get("enabled"))


def _can_build_runc() -> bool:
    if shutil.which("pkg-config") is None:
        return False
    return subprocess.run(["pkg-config", "--exists", "libseccomp"], check=False).returncode == 0


def build() -> Path:
    """Build the missing programs; return their directory. If another process builds them, wait for that process."""
    where = directory()
    if not _whole(where):
        where.mkdir(parents=True, exist_ok=True)
        print(f"Kubernetes, built from source into {where}: usually 5 to 15 minutes on two idle cores", flush=True)
        with _locked(where / "lock"):
            flags = _linker_flags()
            for program in needed():
                if not (where / program.name).exists():
                    _step(program.name, where, program, flags)
            _links(where)
        _remove_unused(where)
    if runc_for_users(where) is None and _can_build_runc():
        with _locked(where / "lock"):
            if not (where / RUNC.name).exists():
                _step(RUNC.name, where, RUNC, _linker_flags())
    return where


def _remove_unused(kept: Path) -> None:
    """Remove cached programs of other sources that have not been used for a month; each directory has 225 MB."""
    for other in cache().iterdir():
        ours = (other / BUILT[0].name).exists()
        if ours and other != kept and other.stat().st_mtime < time.time() - _FORGOTTEN_S:
            shutil.rmtree(other, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _required(module: str) -> str:
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)", (SOURCES / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise MissingError(f"{SOURCES / 'go.mod'} does not require {module}")
    return found[1]


def _linker_flags() -> str:
    """Return the linker flags: no symbols, and the versions that the programs report."""
    kubernetes = _required("k8s.io/kubernetes")
    minor = kubernetes.split(".")[1]
    version = "k8s.io/component-base/version."
    said: Mapping[str, str] = {
        version + "gitVersion": kubernetes,
        version + "gitMajor": "1",
        version + "gitMinor": minor,
        version + "gitTreeState": "clean",
        f"{_CONTAINERD}/version.Version": _required(_CONTAINERD),
    }
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in said.items())])


def _step(what: str, where: Path, program: Program, flags: str) -> None:
    print(f"  building {what:<28}", end=" ", flush=True)
    began = time.monotonic()
    unfinished = where / f".{program.name}.{os.getpid()}"
    environment = dict(os.environ, CGO_ENABLED=str(int(bool(program.tags_c))), GOFLAGS=_FLAGS)
    command = [
        "nice",
        "-n",
        "15",
        "go",
        "build",
        "-tags",
        _TAGS + program.tags_c,
        "-ldflags",
        flags,
        "-o",
        str(unfinished),
    ]
    told = subprocess.run(
        [*command, program.package], cwd=SOURCES, env=environment, capture_output=True, text=True, check=False
    )
    if told.returncode != 0:
        unfinished.unlink(missing_ok=True)
        print("failed", flush=True)
        raise MissingError(f"go build {program.package} ended with {told.returncode}:\n{told.stderr.strip()}")
    unfinished.rename(where / program.name)
    print(f"{time.monotonic() - began:6.1f} s", flush=True)


def _links(where: Path) -> None:
    for name in KUBERNETES:
        if not (where / name).is_symlink():
            (where / name).symlink_to("kube")


def main(build: Callable[[], object] = build) -> int:
    """Build the programs; on failure, print the missing requirement to stderr."""
    try:
        build()
    except MissingError as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
