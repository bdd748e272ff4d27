"""Build the product's image as an OCI archive from Debian packages and the wheel: ``make image``.

Needs no image registry, no container engine and no root. ``build/image`` then has ``calabash-VERSION.oci.tar`` for
``ctr -n k8s.io images import`` or ``skopeo copy oci-archive:...``, for x86-64 and for aarch64 if there is a cross compiler, and
``calabash-VERSION.cdx.json``, the list of its contents (SBOM). No program of the other machine is run.
The same packages and the same tree give the same bytes. ``Containerfile`` describes the same image for a container engine.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import calabash
from tools import debian, oci, sbom, wheel
from tools.debian import DebianPackage, PackagesError, cache

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("base-files", "libstdc++6", "python3")
REFERENCE = f"localhost/calabash:{calabash.__version__}"
USER = 65532
_SITE = Path("usr/lib/python3/dist-packages")
_SCRIPT = "#!/usr/bin/python3 -I\nfrom {module} import {function}\n\n{function}()\n"
_SCRIPTS = {"calabash": ("calabash.cli.main", "main"), "kubectl-calabash": ("calabash.cli.kubectl.group", "main")}
# Of Python packages: tests, headers, and what only compilers and editors read.
_NEEDLESS = ("numpy/**/tests", "scipy/**/tests", "numpy/_core/include", "numpy/_core/lib", "bin")
_USERS = f"root:x:0:0:root:/root:/usr/sbin/nologin\ncalabash:x:{USER}:{USER}:calabash:/:/usr/sbin/nologin\n"
_GROUPS = f"root:x:0:\ncalabash:x:{USER}:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image archive and, for each machine, the file with the SBOM."""

    archive: Path
    sboms: tuple[Path, ...]
    reference: str = REFERENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Files of the image for one machine, one directory for each layer, and the SBOM."""

    machine: str
    base: Path
    libraries: Path
    product: Path
    sbom: str


def build(out: Path, machines: Sequence[str] = ()) -> Built:
    """Build the image in ``out``, by default for this machine only. Raises PackagesError."""
    out.mkdir(parents=True, exist_ok=True)
    own = platform.machine()
    with tempfile.TemporaryDirectory(prefix="calabash-image-") as scratch, ThreadPoolExecutor(3) as several:
        trees = [assemble(Path(scratch) / machine, machine, several) for machine in machines or (own,)]
        compiler = next((tree.base for tree in trees if tree.machine == own), None) or _base(
            Path(scratch) / "compiler", own
        )
        archive = oci.write_archive(
            out / f"calabash-{calabash.__version__}.oci.tar", [_image(tree, compiler, several) for tree in trees]
        )
    sboms = []
    for tree in trees:
        kind = "" if tree.machine == own else f"-{oci.architecture(tree.machine)}"
        sboms.append(out / f"calabash-{calabash.__version__}{kind}.cdx.json")
        sboms[-1].write_text(tree.sbom)
    return Built(archive=archive, sboms=tuple(sboms))


def assemble(directory: Path, machine: str, several: ThreadPoolExecutor) -> Tree:
    """Assemble all files of the image for a machine, in directories; run none of them. Raises PackagesError."""
    directory.mkdir(parents=True)
    base, libraries, product = (directory / name for name in ("base", "libraries", "product"))
    built = several.submit(wheel.build, directory, machine)
    packages = debian_packages(machine)
    unpacked = several.submit(_unpack, packages, base)
    try:
        _install(built.result(), python_of(packages), machine, libraries)
    except wheel.BuildError as error:
        raise PackagesError(str(error)) from error
    unpacked.result()
    document = _sbom(packages, base, libraries)
    _separate(libraries, product)
    _scripts(product)
    (product / "usr/share/calabash").mkdir(parents=True)
    (product / "usr/share/calabash/sbom.cdx.json").write_text(document)
    return Tree(machine=machine, base=base, libraries=libraries, product=product, sbom=document)


def fetched(machine: str) -> Path:
    """Return the file that exists if the caches hold everything for a machine."""
    return cache() / f"complete-{machine}"


def fetch() -> None:
    """Fill the caches of Debian and Python packages for the other machines. Raises PackagesError."""
    for machine in possible_machines()[1:]:
        fetched(machine).unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="calabash-image-") as scratch, ThreadPoolExecutor(3) as several:
            assemble(Path(scratch) / machine, machine, several)
        fetched(machine).touch()


def debian_packages(machine: str) -> list[DebianPackage]:
    """Return the Debian packages of the image; fetch those that the cache lacks. Raises PackagesError."""
    return debian.fetch(PACKAGES, cache(), "" if machine == platform.machine() else oci.architecture(machine))


def _base(directory: Path, machine: str) -> Path:
    _unpack(debian_packages(machine), directory)
    return directory


def _image(tree: Tree, compiler: Path, several: ThreadPoolExecutor) -> oci.Image:
    layers = (tree.base, tree.libraries, tree.product)
    return oci.Image(
        REFERENCE,
        tuple(several.map(partial(_layer, compiler, tree), layers)),
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
        machine=tree.machine,
    )


def python_of(packages: list[DebianPackage]) -> str:
    """Return the version of Python among these packages, as ``3.11``."""
    names = (re.fullmatch(r"python(3\.\d+)", package.name) for package in packages)
    (version,) = (name[1] for name in names if name)
    return version


def _unpack(packages: list[DebianPackage], base: Path) -> None:
    """Unpack the packages' files and create the files that their installation scripts would have made."""
    debian.unpack(packages, base)
    for path, text in {"etc/passwd": _USERS, "etc/group": _GROUPS}.items():
        (base / path).write_text(text)
    for directory in ("run", "proc", "sys", "dev", "etc/calabash", "tmp"):
        (base / directory).mkdir(parents=True, exist_ok=True)
    (base / "tmp").chmod(0o1777)


def _install(product: Path, python: str, machine: str, tree: Path) -> None:
    target = tree / _SITE
    target.mkdir(parents=True)
    kind = ("--python-version", python, "--python-platform", f"{machine}-manylinux_2_36", "--only-binary", ":all:")
    wheel.run(
        wheel.uv(), "pip", "install", "--quiet", "--target", str(target), *kind, f"calabash[all] @ {product.as_uri()}"
    )
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
    """Move the product into a layer of its own, since it changes more often than the libraries below it."""
    (product / _SITE).mkdir(parents=True)
    for path in list((libraries / _SITE).glob("calabash*")):
        path.rename(product / _SITE / path.name)


def _compile(base: Path, tree: Path, *, is_base: bool) -> None:
    """Compile the Python files of a layer by the image's own Python, that of ``base``, which this machine can run.

    The image may be read-only, and its files have no times that could be compared with those of byte code. Byte code is the
    same for every machine.
    """
    (loader,) = base.glob("usr/lib*/ld-linux*.so.*")
    libraries = ":".join(str(path) for path in base.glob("usr/lib/*-linux-gnu"))
    (python,) = base.glob("usr/bin/python3.[0-9]*")
    command = [loader, "--library-path", libraries, python, "-S", "-m", "compileall", "-q", "-f"]
    directories = [tree / "usr/lib" / python.name] if is_base else [tree / _SITE]
    wheel.run(
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


def _layer(compiler: Path, tree: Tree, layer: Path) -> bytes:
    try:
        _compile(compiler, layer, is_base=layer == tree.base)
    except wheel.BuildError as error:
        raise PackagesError(str(error)) from error
    return oci.packed(oci.layer_of(layer))


def _scripts(product: Path) -> None:
    directory = product / "usr/local/bin"
    directory.mkdir(parents=True)
    for name, (module, function) in _SCRIPTS.items():
        (directory / name).write_text(_SCRIPT.format(module=module, function=function))
        (directory / name).chmod(0o755)


def _sbom(packages: list[DebianPackage], base: Path, libraries: Path) -> str:
    release = re.search(r'^VERSION_ID="?([^"\n]+)', (base / "usr/lib/os-release").read_text(), re.MULTILINE)
    debs = sbom.debian_packages(packages, release[1] if release else "")
    return sbom.document("calabash", calabash.__version__, [*debs, *sbom.python_packages(libraries / _SITE)])


def possible_machines() -> list[str]:
    """Machines for which there is a compiler, this one first."""
    own = platform.machine()
    others = [name for name in wheel.MACHINES if name != own and shutil.which(f"{name}-linux-gnu-gcc")]
    return [own, *others]


def main() -> int:
    """Make the image."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "image", help="directory for the results")
    parser.add_argument(
        "--arch",
        choices=wheel.MACHINES,
        action="append",
        help="machines that it is for (those for which we can compile)",
    )
    parser.add_argument(
        "--fetch", action="store_true", help="only fill the caches with what the other machines' images take"
    )
    arguments = parser.parse_args()
    try:
        if arguments.fetch:
            fetch()
            return 0
        built = build(arguments.out, arguments.arch or possible_machines())
    except PackagesError as error:
        print(f"error: {error}", file=sys.stderr)
        print("hint: it needs a Debian with package lists (apt-get update), and the packages' servers", file=sys.stderr)
        return 1
    print(f"{built.archive}  {built.archive.stat().st_size >> 20} MiB  {built.reference}", *built.sboms, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
