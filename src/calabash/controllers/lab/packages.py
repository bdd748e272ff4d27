"""Packages of Debian 13 (OVN, Open vSwitch, appliances) in the user's cache: fetched by APT, unpacked, not installed.

APT is run with separate sources and lists, so that the packages can be fetched on machines of another release as well.
It verifies signatures with Debian's keys. Only the packages with the programs and their libraries are fetched, about 16
MB.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.children import PACKAGES, child_environment, find_program, root_alone_writes, run_program
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
_APPLIANCES = (
    "conntrack",
    "conntrackd",
    "haproxy",
    "keepalived",
    "nftables",
    "libblkid1",
    "libbsd0",
    "libc6",
    "libcap2",
    "libcrypt1",
    "libedit2",
    "libffi8",
    "libgcc-s1",
    "libglib2.0-0t64",
    "libgmp10",
    "libjansson4",
    "libjemalloc2",
    "liblua5.4-0",
    "libmd0",
    "libmnl0",
    "libmount1",
    "libnetfilter-conntrack3",
    "libnetfilter-cthelper0",
    "libnetfilter-queue1",
    "libnfnetlink0",
    "libnftables1",
    "libnftnl11",
    "libnl-3-200",
    "libnl-genl-3-200",
    "libopentracing-c-wrapper0t64",
    "libopentracing1",
    "libpci3",
    "libpcre2-8-0",
    "libperl5.40",
    "libselinux1",
    "libsensors5",
    "libsnmp40t64",
    "libssl3t64",
    "libstdc++6",
    "libsystemd0",
    "libtinfo6",
    "libudev1",
    "libwrap0",
    "libxtables12",
    "libatomic1",
    "libzstd1",
    "zlib1g",
)
_APT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageTree:
    """A set of packages that is unpacked into one directory, the tree.

    Args:
        name: name of the directory.
        title: name of the tree in messages.
        packages: names of the Debian packages.
        proof: path in the tree of a file that exists if the tree is complete.
        otherwise: text for hints that says what can be installed instead.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    proof: str
    otherwise: str


OVN = PackageTree(
    name="ovn",
    title="OVN",
    packages=_PACKAGES,
    proof="usr/lib/openvswitch-switch/ovs-vswitchd",
    otherwise="install OVN 24 or newer and Open vSwitch 3.1.3 or newer",
)
APPLIANCES = PackageTree(
    name="appliances",
    title="HAProxy with keepalived, nftables and conntrackd",
    packages=_APPLIANCES,
    proof="usr/sbin/haproxy",
    otherwise="apt-get install nftables keepalived conntrackd conntrack haproxy",
)


def cached(which: PackageTree = OVN) -> Path:
    """Return the location of a tree: ``~/.cache/calabash/ovn``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calabash" / which.name


def fetched(which: PackageTree = OVN) -> bool:
    """Return True if the tree exists at its location, to which ``fetch`` moves it only when it is complete.

    Raises:
        CalabashError: NOT_PERMITTED if another user could change programs that root would run.
    """
    proof = cached(which) / which.proof
    if not proof.exists():
        return False
    _require_roots(proof)
    return True


def _require_roots(path: Path) -> None:
    if os.geteuid() == 0 and not root_alone_writes(path):
        raise CalabashError(
            f"{path} is not safe to run for root: another user owns or can write it or a directory above it",
            reason=Reason.NOT_PERMITTED,
            hint="set XDG_CACHE_HOME to a directory of root, such as /var/cache",
        )


def fetch(which: PackageTree = OVN) -> Path:
    """Return the directory of a package tree; fetch the packages if they are missing.

    Raises CalabashError: UNSUPPORTED without APT, UNREACHABLE if fetching fails.
    """
    tree = cached(which)
    if fetched(which):
        return tree
    for program in ("apt-get", "dpkg-deb"):
        if find_program(program) is None:
            raise CalabashError(
                f"{program} is missing, which is needed to fetch {which.title} of Debian 13",
                reason=Reason.UNSUPPORTED,
                hint=which.otherwise,
            )
    if not _KEYRING.exists():
        raise CalabashError(
            f"keys of Debian are missing: {_KEYRING}",
            reason=Reason.UNSUPPORTED,
            hint=f"apt-get install debian-archive-keyring, or {which.otherwise}",
        )
    tree.parent.mkdir(parents=True, exist_ok=True)
    _require_roots(tree.parent)
    with open(tree.parent / f"{which.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when closed
        return tree if fetched(which) else _build_tree(which, tree)


def _build_tree(which: PackageTree, tree: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix=f"{which.name}-", dir=tree.parent) as name:
        place = Path(name)
        _download(which, place)
        made = place / "tree"
        made.mkdir()
        for file in sorted(place.glob("*.deb")):
            _run("dpkg-deb", "-x", str(file), str(made), cwd=place)
        for unused in ("share/man", "share/doc", "share/perl", "lib/*/perl", "lib/*/perl-base", "lib/*/gconv"):
            for path in (made / "usr").glob(unused):
                shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(tree, ignore_errors=True)  # an older or incomplete tree
        made.rename(tree)
    return tree


def _download(which: PackageTree, place: Path) -> None:
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
    _run(*apt, "download", *which.packages, cwd=place)


def _run(*command: str, cwd: Path) -> None:
    try:
        done = run_program(command, directory=cwd, timeout_s=_APT_S, environment=child_environment(PACKAGES))
    except subprocess.TimeoutExpired as error:
        raise CalabashError(
            f"{command[0]} did not end within {_APT_S} s", reason=Reason.TIMEOUT, hint="try again"
        ) from error
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise CalabashError(
            f"packages of Debian 13 cannot be fetched: {command[0]}: {output[-1] if output else done.returncode}",
            reason=Reason.UNREACHABLE,
            hint=f"connect to the network, set a mirror in {MIRROR_VARIABLE}, or install OVN 24 and Open vSwitch 3.1.3",
        )
