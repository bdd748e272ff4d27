"""``make image``: the product's image as an OCI archive, from Debian packages and the wheel.

No registry of images, no container engine and no root. ``build/image`` then has ``calabash-VERSION.oci.tar`` for
``ctr -n k8s.io images import`` or ``skopeo copy oci-archive:...``, and ``calabash-VERSION.cdx.json``, which says what is in it.
The same packages and the same tree give the same bytes. ``Containerfile`` says the same to a container engine.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import calabash
from tools import debian, oci, sbom
from tools.debian import DebianPackage, PackagesError

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("base-files", "libstdc++6", "python3")
REFERENCE = f"localhost/calabash:{calabash.__version__}"
USER = 65532
_SITE = Path("usr/lib/python3/dist-packages")
_SCRIPT = "#!/usr/bin/python3 -I\nfrom {module} import {function}\n\n{function}()\n"
_SCRIPTS = {"calabash": ("calabash.cli.main", "main"), "kubectl-calabash": ("calabash.cli.kubectl", "main")}
# Of Python packages: tests, headers, and what only compilers and editors read.
_NEEDLESS = ("numpy/**/tests", "scipy/**/tests", "numpy/_core/include", "numpy/_core/lib", "bin")
_USERS = f"root:x:0:0:root:/root:/usr/sbin/nologin\ncalabash:x:{USER}:{USER}:calabash:/:/usr/sbin/nologin\n"
_GROUPS = f"root:x:0:\ncalabash:x:{USER}:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image and the list of what is in it."""

    archive: Path
    bill: Path
    reference: str = REFERENCE


def cache() -> Path:
    """Where fetched packages are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calabash" / "debian"


def build(out: Path) -> Built:
    """Makes the image in ``out``. Raises PackagesError."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="calabash-image-") as scratch, ThreadPoolExecutor(3) as several:
        base, libraries, product = (Path(scratch) / name for name in ("base", "libraries", "product"))
        built = several.submit(wheel, Path(scratch))
        packages = debian.fetch(PACKAGES, cache())
        unpacked = several.submit(_unpack, packages, base)
        _install(built.result(), python_of(packages), libraries)
        unpacked.result()
        bill = _bill(packages, base, libraries)
        _separate(libraries, product)
        _scripts(product)
        (product / "usr/share/calabash").mkdir(parents=True)
        (product / "usr/share/calabash/sbom.cdx.json").write_text(bill)
        image = oci.Image(
            REFERENCE,
            tuple(several.map(partial(_layer, base), (base, libraries, product))),
            {
                "User": f"{USER}:{USER}",
                "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"],
                "Entrypoint": ["calabash"],
                "WorkingDir": "/",
            },
            labels={
                "org.opencontainers.image.title": "calabash",
                "org.opencontainers.image.version": calabash.__version__,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        )
        archive = oci.write_archive(out / f"calabash-{calabash.__version__}.oci.tar", [image])
    beside = out / f"calabash-{calabash.__version__}.cdx.json"
    beside.write_text(bill)
    return Built(archive=archive, bill=beside)


def wheel(out: Path) -> Path:
    """Builds the product's wheel with the native libraries as they are; its path."""
    _uv("build", "--quiet", "--wheel", "--out-dir", str(out), str(ROOT))
    (path,) = out.glob("*.whl")
    return path


def python_of(packages: list[DebianPackage]) -> str:
    """The version of Python that these packages bring, ``3.11``."""
    names = (re.fullmatch(r"python(3\.\d+)", package.name) for package in packages)
    (version,) = (name[1] for name in names if name)
    return version


def _unpack(packages: list[DebianPackage], base: Path) -> None:
    """The packages' files, and what their scripts would have made."""
    debian.unpack(packages, base)
    for path, text in {"etc/passwd": _USERS, "etc/group": _GROUPS}.items():
        (base / path).write_text(text)
    for directory in ("run", "proc", "sys", "dev", "etc/calabash", "tmp"):
        (base / directory).mkdir(parents=True, exist_ok=True)
    (base / "tmp").chmod(0o1777)


def _install(product: Path, python: str, tree: Path) -> None:
    target = tree / _SITE
    target.mkdir(parents=True)
    version = ("--python-version", python)
    _uv("pip", "install", "--quiet", "--target", str(target), *version, "--only-binary", ":all:", str(product))
    for pattern in _NEEDLESS:
        for path in list(target.glob(pattern)):
            shutil.rmtree(path, ignore_errors=True)
    for pattern in (
        "**/*.pyi",
        "**/*.pxd",
        "**/__pycache__",
        ".lock",
        "*.dist-info/RECORD",
        "*.dist-info/direct_url.json",
    ):
        for path in list(target.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _separate(libraries: Path, product: Path) -> None:
    """The product gets a layer of its own, for it changes more often than what it stands on."""
    (product / _SITE).mkdir(parents=True)
    for path in list((libraries / _SITE).glob("calabash*")):
        path.rename(product / _SITE / path.name)


def _compile(base: Path, tree: Path) -> None:
    """Byte code by the image's own Python: the image may be read-only, and files have no times that could be compared."""
    (loader,) = base.glob("usr/lib*/ld-linux*.so.*")
    libraries = ":".join(str(path) for path in base.glob("usr/lib/*-linux-gnu"))
    (python,) = base.glob("usr/bin/python3.[0-9]*")
    command = [loader, "--library-path", libraries, python, "-S", "-m", "compileall", "-q", "-f"]
    directories = [base / "usr/lib" / python.name] if tree == base else [tree / _SITE]
    _run(
        *(str(word) for word in command),
        *("--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", "/"),
        *(str(directory) for directory in directories),
        environment={
            "PYTHONHOME": str(base / "usr"),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": os.defpath,
        },
    )


def _layer(base: Path, tree: Path) -> bytes:
    _compile(base, tree)
    return oci.packed(oci.layer_of(tree))


def _scripts(product: Path) -> None:
    directory = product / "usr/local/bin"
    directory.mkdir(parents=True)
    for name, (module, function) in _SCRIPTS.items():
        (directory / name).write_text(_SCRIPT.format(module=module, function=function))
        (directory / name).chmod(0o755)


def _bill(packages: list[DebianPackage], base: Path, libraries: Path) -> str:
    release = re.search(r'^VERSION_ID="?([^"\n]+)', (base / "usr/lib/os-release").read_text(), re.MULTILINE)
    debs = sbom.debian_packages(packages, release[1] if release else "")
    return sbom.document("calabash", calabash.__version__, [*debs, *sbom.python_packages(libraries / _SITE)])


def _uv(*words: str) -> None:
    own = ROOT / ".tools" / "bin" / "uv"
    program = os.environ.get("UV") or shutil.which("uv") or (str(own) if own.exists() else "")
    if not program:
        raise PackagesError("uv is not installed; hint: tools/bootstrap")
    _run(program, *words)


def _run(*command: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, errors="replace")
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise PackagesError(f"{Path(command[0]).name} ended with {done.returncode}: {said}")


def main() -> int:
    """Make the image."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "image", help="directory for the results")
    try:
        built = build(parser.parse_args().out)
    except PackagesError as error:
        print(f"error: {error}", file=sys.stderr)
        print("hint: it needs a Debian with package lists (apt-get update), and the packages' servers", file=sys.stderr)
        return 1
    print(f"{built.archive}  {built.archive.stat().st_size >> 20} MiB  {built.reference}\n{built.bill}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
