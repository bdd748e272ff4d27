"""The programs of a real Kubernetes, built once from pinned Go modules and kept in a cache.

``python -m tests.kube.programs`` builds what is missing and says what each step took; ``tools/bootstrap --tests`` calls
it. A directory of the cache is named by everything that decides what is built: module files, sources, Go's version, the
machine. A program is built under another name and renamed, so that one that is there is whole, and an interrupted build
goes on where it stopped. Nothing is fetched and Go is not needed where everything is there.
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
_TAGS = "grpcnotrace"  # without it the linker keeps every method of every type
_FORGOTTEN_S = 30 * 86400
_CONTAINERD = "github.com/containerd/containerd/v2"


@dataclass(frozen=True, slots=True)
class Program:
    """One program to build: the package, and for one with parts in C what is chosen of those."""

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
    """The programs are not there; the text says what to do about it."""


def cache() -> Path:
    """Where built programs are kept; ``CALABASH_KUBE_CACHE`` moves it."""
    chosen = os.environ.get("CALABASH_KUBE_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calabash" / "kube"


def key(sources: Path = SOURCES, how: str = "") -> str:
    """What is built, as a name: module files, sources, the machine, and how."""
    digest = hashlib.sha256(f"{platform.system()} {platform.machine()}{how}".encode())
    for path in (sources / "go.mod", sources / "go.sum", *sorted(sources.rglob("*.go"))):
        digest.update(f"\n{path.relative_to(sources)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def go_version() -> str | None:
    """The version of Go that would build, as Go itself chooses it for these modules; None without Go."""
    if shutil.which("go") is None:
        return None
    told = subprocess.run(["go", "env", "GOVERSION"], cwd=SOURCES, capture_output=True, text=True, check=False)
    return told.stdout.strip() or None


def _whole(directory: Path) -> bool:
    return all((directory / program.name).exists() for program in needed())


def needed() -> tuple[Program, ...]:
    """What has to be built on this machine."""
    return BUILT if shutil.which("runc") else (*BUILT, RUNC)


def directory() -> Path:
    """The directory of these programs, whole or not; without Go any whole one that was built from the same sources."""
    version, name = go_version(), key(SOURCES, f"{BUILT} {RUNC} {_FLAGS} {_TAGS} {_linker_flags()}")
    if version is not None:
        return cache() / f"{name}-{version}"
    for candidate in sorted(cache().glob(f"{name}-*")):
        if _whole(candidate):
            return candidate
    raise MissingError("Go is not installed, and no programs built from these sources are in the cache")


def found() -> Path:
    """The directory with all the programs in it."""
    where = directory()
    if not _whole(where):
        raise MissingError(f"Kubernetes is not built in {where}; hint: tools/bootstrap --tests")
    os.utime(where)
    return where


def runc(programs: Path) -> Path:
    """The program that starts containers: Debian's, else ours."""
    installed = shutil.which("runc")
    return Path(installed) if installed else programs / RUNC.name


def runc_for_users(programs: Path) -> Path | None:
    """One that can give a pod users of its own, which runc does since 1.2; None where there is none."""
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
    """Builds what is missing; a second builder waits for the first and finds its work done."""
    where = directory()
    if not _whole(where):
        where.mkdir(parents=True, exist_ok=True)
        with _locked(where / "lock"):
            flags = _linker_flags()
            for program in needed():
                if not (where / program.name).exists():
                    _step(program.name, where, program, flags)
            _links(where)
        _forget_old(where)
    if runc_for_users(where) is None and _can_build_runc():
        with _locked(where / "lock"):
            if not (where / RUNC.name).exists():
                _step(RUNC.name, where, RUNC, _linker_flags())
    return where


def _forget_old(kept: Path) -> None:
    """Removes what other sources built and nobody has used for a month: 225 MB each."""
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
    """No symbols, and the versions that the programs say of themselves."""
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
    """A command that builds; what is missing is told on stderr."""
    try:
        build()
    except MissingError as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
