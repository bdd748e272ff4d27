"""Build the product's wheel for this machine or, with a cross compiler, for the other one: ``python -m tools.wheel``.

A wheel holds the C libraries of one machine; its name says which machine and which version of the C library it needs. For
aarch64 on x86-64 it takes ``gcc-aarch64-linux-gnu`` and ``libc6-dev-arm64-cross`` (``tools/bootstrap --tests``). A wheel
without TLS, which a machine without ``libssl-dev`` would make, is refused unless ``CALABASH_WITHOUT_TLS=1`` is set.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import openssl
from tools.debian import PackagesError

ROOT = Path(__file__).resolve().parent.parent
MACHINES = ("x86_64", "aarch64")


class BuildError(Exception):
    """A build failed; the text is its message."""


def libraries(machine: str) -> Path:
    """Return the directory with the C libraries for a machine; build them if they are not there. Raises BuildError."""
    own = machine == platform.machine()
    prefix = _tool_prefix(machine)
    if not own and shutil.which(f"{prefix}gcc") is None:
        raise BuildError(f"{prefix}gcc is not installed; hint: tools/bootstrap --tests")
    lock = ROOT / "build" / ("native.lock" if own else "cross.lock")
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not own:
            try:
                openssl.provide(machine, ROOT / "build" / f"openssl-{machine}")
            except PackagesError as error:
                raise BuildError(f"OpenSSL for {machine}: {error}; hint: tools/bootstrap --tests") from error
        plain = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "OUT", "BUILD", "CC")}
        words = [] if own else [f"CROSS={prefix}"]
        run("make", "-s", "-j2", "-C", str(ROOT / "native"), *words, environment=plain)
    return ROOT / "src/calabash/_native" if own else ROOT / f"build/native-{machine}/_native"


def build(out: Path, machine: str = "") -> Path:
    """Build the wheel for a machine and return its path. Raises BuildError."""
    machine = machine or platform.machine()
    with tempfile.TemporaryDirectory(prefix="calabash-native-") as scratch:
        native = libraries(machine)
        require_tls(native)
        return _build(out, machine, stripped(native, machine, Path(scratch) / "_native"))


def require_tls(native: Path) -> None:
    """Raise BuildError if the C libraries have no TLS, unless ``CALABASH_WITHOUT_TLS=1`` permits that."""
    library = native / "remote/libcalabash-tls.so"
    if not library.is_file() and os.environ.get("CALABASH_WITHOUT_TLS") != "1":
        raise BuildError(
            f"the wheel would have no TLS, so that programs could not use devices of other machines: {library} is"
            " missing; hint: install libssl-dev; CALABASH_WITHOUT_TLS=1 permits a wheel without TLS"
        )


def stripped(native: Path, machine: str, target: Path) -> Path:
    """Copy the C libraries of a machine without what a wheel need not have; return the copy.

    Debug information is removed. A wheel has no symbolic links, so that a second name of a library would be a second copy of
    it: it becomes a small library that loads the first name.
    """
    shutil.copytree(native, target, symlinks=True)
    compiler = f"{_tool_prefix(machine)}gcc"
    for link in [path for path in target.rglob("*.so*") if path.is_symlink()]:
        library = os.readlink(link)
        link.unlink()
        words = ("-shared", "-nostdlib", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined")
        run(compiler, *words, f"-L{link.parent}", f"-l:{library}", "-o", str(link))
    files = [path for path in target.rglob("*") if path.is_file() and not path.is_symlink()]
    elf = [str(path) for path in files if path.read_bytes()[:4] == b"\x7fELF"]
    run(f"{_tool_prefix(machine)}strip", "--strip-unneeded", "--enable-deterministic-archives", *elf)
    return target


def _tool_prefix(machine: str) -> str:
    """Return the prefix of the names of the compiler and its tools; "" for those of this machine."""
    return "" if machine == platform.machine() else f"{machine}-linux-gnu-"


def _build(out: Path, machine: str, native: Path) -> Path:
    for old in out.glob(f"calabash-*_{machine}.whl"):
        old.unlink()
    environment = os.environ | {"CALABASH_WHEEL_NATIVE": str(native)}
    run(uv(), "build", "--quiet", "--wheel", "--out-dir", str(out), str(ROOT), environment=environment)
    (path,) = out.glob(f"calabash-*_{machine}.whl")
    return path


def uv() -> str:
    """Return the path of the program uv. Raises BuildError if it is not installed."""
    own = ROOT / ".tools" / "bin" / "uv"
    program = os.environ.get("UV") or shutil.which("uv") or (str(own) if own.exists() else "")
    if not program:
        raise BuildError("uv is not installed; hint: tools/bootstrap")
    return program


def run(*command: str, environment: dict[str, str] | None = None) -> None:
    """Run a command; raise BuildError with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, errors="replace")
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise BuildError(f"{Path(command[0]).name} ended with {done.returncode}: {said}")


def main() -> int:
    """Make wheels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--arch", choices=MACHINES, action="append", help="for which machine, several times for several"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory for the results")
    arguments = parser.parse_args()
    try:
        for machine in arguments.arch or [platform.machine()]:
            print(build(arguments.out, machine))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
