"""OVN and Open vSwitch of Debian 13 as files in the user's cache: fetched by APT, unpacked by dpkg-deb, not installed.

APT works with sources and lists of its own, so that a machine with another release's can have them, and checks signatures
with Debian's keys. Only what the programs load is fetched, about 16 MB.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from calabash.model.errors import CalabashError, Reason

SUITE = "trixie"
MIRROR_VARIABLE = "CALABASH_DEBIAN_MIRROR"
_MIRROR = "http://deb.debian.org/debian"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PACKAGES = (
    "openvswitch-common",
    "openvswitch-switch",
    "ovn-central",
    "ovn-common",
    "ovn-host",
    "libbpf1",
    "libc6",
    "libcap-ng0",
    "libcap2",
    "libelf1t64",
    "libevent-2.1-7t64",
    "libnuma1",
    "libssl3t64",
    "libudev1",
    "libunbound8",
    "libxdp1",
    "libzstd1",
    "zlib1g",
)
_APT_S = 600


def cached() -> Path:
    """Where the tree is when it has been fetched: ``~/.cache/calabash/ovn``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calabash" / "ovn"


def fetched() -> bool:
    """Whether the tree is there, whole: it is renamed to its place when it is."""
    return (cached() / "usr" / "lib" / "openvswitch-switch" / "ovs-vswitchd").exists()


def fetch() -> Path:
    """The tree, fetched when it is not there. Raises CalabashError, UNSUPPORTED where no APT is, UNREACHABLE where it fails."""
    tree = cached()
    if fetched():
        return tree
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise CalabashError(
                f"{program} is missing, with which OVN of Debian 13 would be fetched",
                reason=Reason.UNSUPPORTED,
                hint="install OVN 24 or newer and Open vSwitch 3.1.3 or newer",
            )
    if not _KEYRING.exists():
        raise CalabashError(
            f"Debian's keys are not at {_KEYRING}",
            reason=Reason.UNSUPPORTED,
            hint="apt-get install debian-archive-keyring, or install OVN 24 or newer and Open vSwitch 3.1.3 or newer",
        )
    tree.parent.mkdir(parents=True, exist_ok=True)
    with open(tree.parent / "ovn.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when closed
        return tree if fetched() else _made(tree)


def _made(tree: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="ovn-", dir=tree.parent) as name:
        place = Path(name)
        _download(place)
        made = place / "tree"
        made.mkdir()
        for file in sorted(place.glob("*.deb")):
            _run("dpkg-deb", "-x", str(file), str(made), cwd=place)
        shutil.rmtree(made / "usr" / "share" / "man", ignore_errors=True)
        shutil.rmtree(tree, ignore_errors=True)  # of an older shape, or half deleted
        made.rename(tree)
    return tree


def _download(place: Path) -> None:
    for part in ("lists/partial", "archives/partial", "apt"):
        (place / part).mkdir(parents=True)
    (place / "status").touch()
    mirror = os.environ.get(MIRROR_VARIABLE) or _MIRROR
    (place / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {mirror} {SUITE} main\n")
    options = {
        "Dir::State::status": place / "status",
        "Dir::State::lists": place / "lists",
        "Dir::Cache::archives": place / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Dir::Etc::sourcelist": place / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferencesparts": "-",
        "Dir::Etc::preferences": "-",
        "APT::Sandbox::User": "",
        "APT::Update::Error-Mode": "any",
        "Acquire::Retries": "3",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Debug::NoLocking": "true",
    }
    apt = ["apt-get", "-q", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    _run(*apt, "update", cwd=place)
    _run(*apt, "download", *_PACKAGES, cwd=place)


def _run(*command: str, cwd: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, errors="replace", check=False, timeout=_APT_S
        )
    except subprocess.TimeoutExpired as error:
        raise CalabashError(
            f"{command[0]} did not end within {_APT_S} s", reason=Reason.TIMEOUT, hint="try again"
        ) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CalabashError(
            f"OVN of Debian 13 cannot be fetched: {command[0]}: {said[-1] if said else done.returncode}",
            reason=Reason.UNREACHABLE,
            hint=f"connect to the network, name a mirror in {MIRROR_VARIABLE}, or install OVN 24 and Open vSwitch 3.1.3",
        )
