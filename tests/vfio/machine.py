"""Emulated machine with an IOMMU, for programs of this tree: QEMU without KVM, a Debian kernel, this machine's files.

The first program in it is busybox from an archive in memory. It mounts this machine's ``/`` read-only by virtiofs, mounts the
kernel's own directories over it, and starts the program: the same Python, the same packages, another kernel. The program
reports by lines on the serial line that begin with ``@``.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.emulated import Emulated

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INSIDE = "tests.vfio.inside"
MEMORY_MIB = 768
_RUN_S = 480.0
_SOCKET_S = 30.0

_INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sysfs /sys; $b mount -t devtmpfs devtmpfs /dev
for module in $($b cat /modules/order); do $b insmod /modules/$module; done
$b mount -t virtiofs -o ro machine /machine || $b poweroff -f
for place in proc sys dev; do $b mount -o bind /$place /machine/$place; done
$b mkdir /tree; $b mount -o bind /machine@ROOT@ /tree
$b mount -t tmpfs tmpfs /machine/run; $b mount -t tmpfs tmpfs /machine/tmp
$b mkdir -p /machine@ROOT@; $b mount -o bind /tree /machine@ROOT@
echo
. /command
echo "@end $?"
$b poweroff -f
"""

# A card with two functions, one alone in its group, two behind a bridge that does not separate them, one with SR-IOV.
_DEVICES = """
-device pcie-root-port,id=r1,chassis=1,addr=2
-device nvme,bus=r1,addr=0.0,multifunction=on,serial=first,drive=d1
-drive if=none,id=d1,file={disk},format=raw,snapshot=on
-device nvme,bus=r1,addr=0.1,serial=second,drive=d2 -drive if=none,id=d2,file={disk},format=raw,snapshot=on
-device pcie-root-port,id=r2,chassis=2,addr=3 -device edu,bus=r2
-device pcie-root-port,id=r3,chassis=3,addr=4 -device pcie-pci-bridge,id=b3,bus=r3
-device edu,bus=b3,addr=1 -device virtio-rng-pci,bus=b3,addr=2
-device pcie-root-port,id=r4,chassis=4,addr=5 -device nvme-subsys,id=s4
-device nvme,bus=r4,serial=divided,subsys=s4,sriov_max_vfs=2,sriov_vq_flexible=4,sriov_vi_flexible=2,max_ioqpairs=6,msix_qsize=5
"""
_IOMMU = "-device intel-iommu,intremap=on,caching-mode=on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Output of the machine: the lines that began with ``@``, and everything."""

    lines: list[str]
    console: str
    seconds: float


@dataclass(slots=True)
class EmulatedMachine:
    """Files of a machine; made once in ``scratch``, for any number of runs. The program's modules are compiled outside."""

    parts: Emulated
    scratch: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.environment = {**os.environ, "LD_LIBRARY_PATH": self.parts.libraries, "TMPDIR": str(self.scratch)}
        (self.scratch / "disk").write_bytes(b"a disk of an emulated machine".ljust(1 << 20, b"\0"))
        compiles = {**os.environ, "PYTHONPYCACHEPREFIX": str(self.bytecode), "PYTHONDONTWRITEBYTECODE": ""}
        subprocess.run([python(), "-c", f"import {INSIDE}"], cwd=ROOT, env=compiles, check=True)

    @property
    def bytecode(self) -> Path:
        """Return the directory of the compiled modules."""
        return self.scratch / "bytecode"

    def program(self, innermost: Path, *words: str) -> list[str]:
        """Return the command that runs all cases, or the cases of the words."""
        return [python(), "-m", INSIDE, str(self.parts.tree), str(innermost), *words]

    def run(self, program: Sequence[str], *, iommu: bool = True, processors: int = 2) -> Told:
        """Start the machine, let it run the program as root, and wait for its end."""
        began = time.monotonic()
        archive = self.scratch / f"initramfs-{iommu}"
        archive.write_bytes(self._initramfs(program))
        with self._shared(f"fs-{iommu}.sock") as socket:
            machine = f"q35,memory-backend=mem{',kernel-irqchip=split' if iommu else ''}"
            command = [
                *self.parts.qemu,
                *f"-M {machine} -accel tcg -cpu max -m {MEMORY_MIB} -smp {processors} -nodefaults -nographic".split(),
                *f"-object memory-backend-memfd,id=mem,size={MEMORY_MIB}M,share=on -serial stdio -no-reboot".split(),
                *(_IOMMU.split() if iommu else ()),
                *_DEVICES.format(disk=self.scratch / "disk").split(),
                *f"-chardev socket,id=fs,path={socket} -device vhost-user-fs-pci,chardev=fs,tag=machine".split(),
                *("-kernel", str(self.parts.kernel), "-initrd", str(archive)),
                *("-append", f"console=ttyS0 loglevel=3 panic=-1 intel_iommu={'on' if iommu else 'off'}"),
            ]
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=self.environment,
                    timeout=_RUN_S,
                    check=False,
                )
                said = done.stdout
            except subprocess.TimeoutExpired as late:
                said = (late.stdout or b"") + b"\n(it did not end)"
        text = said.decode(errors="replace")
        lines = [line.partition("@")[2].strip() for line in text.splitlines() if re.match(r"[^@]{0,40}@[{e]", line)]
        return Told(lines=lines, console=text, seconds=time.monotonic() - began)

    @contextmanager
    def _shared(self, name: str) -> Iterator[Path]:
        # A socket's path is short; pytest's directories are not.
        with tempfile.TemporaryDirectory(prefix="calabash-vfio-", dir="/tmp") as short:
            socket = Path(short) / name
            daemon = subprocess.Popen(
                [
                    self.parts.virtiofsd,
                    f"--socket-path={socket}",
                    *("-o", "source=/", "-o", "cache=always", "-o", "sandbox=chroot"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self.environment,
            )
            try:
                until = time.monotonic() + _SOCKET_S
                while not socket.exists():
                    if daemon.poll() is not None or time.monotonic() > until:
                        said = daemon.stderr.read() if daemon.stderr and daemon.poll() is not None else b"nothing"
                        raise RuntimeError(f"virtiofsd does not serve: {said.decode(errors='replace')[-500:]}")
                    time.sleep(0.02)
                yield socket
            finally:
                daemon.kill()
                daemon.communicate()

    def _initramfs(self, program: Sequence[str]) -> bytes:
        busybox = shutil.which("busybox") or "/bin/busybox"
        modules = self.parts.modules("virtio_pci", "virtiofs")
        words = " ".join(f"'{word}'" for word in program)
        environment = (
            "HOME=/run TMPDIR=/run PATH=/usr/bin:/bin:/usr/sbin:/sbin "
            f"PYTHONPATH={ROOT} PYTHONPYCACHEPREFIX={self.bytecode} PYTHONDONTWRITEBYTECODE=1"
        )
        files = {
            "init": (_INIT.replace("@ROOT@", shlex.quote(str(ROOT))).encode(), 0o755),
            "bin/busybox": (Path(busybox).read_bytes(), 0o755),
            "command": (f"{environment} $b chroot /machine {words}\n".encode(), 0o644),
            "modules/order": ("\n".join(m.name for m in modules).encode(), 0o644),
            **{f"modules/{m.name}": (m.read_bytes(), 0o644) for m in modules},
        }
        return gzip.compress(archive_of(files, ("bin", "modules", "proc", "sys", "dev", "machine")), compresslevel=1)


def archive_of(files: dict[str, tuple[bytes, int]], directories: Sequence[str]) -> bytes:
    """Return a cpio archive in the kernel's own format, with the console that the first program needs."""
    out = bytearray()

    def add(name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        nonlocal out
        encoded = name.encode() + b"\0"
        fields = (len(out) + 1, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(encoded), 0)
        out += b"070701" + b"".join(b"%08x" % value for value in fields) + encoded
        out += b"\0" * (-len(out) % 4) + content
        out += b"\0" * (-len(out) % 4)

    for name in directories:
        add(name, 0o040755)
    add("dev/console", 0o020600, device=(5, 1))
    for name, (content, mode) in files.items():
        add(name, 0o100000 | mode, content)
    add("TRAILER!!!", 0)
    return bytes(out)


def build_innermost(to: Path) -> None:
    """Compile the program of the virtual machine inside the machine."""
    flags = "-m32 -O2 -Wall -Wextra -Werror -ffreestanding -fno-pic -fno-stack-protector -nostdlib -static"
    link = f"-Wl,-T,{HERE / 'innermost.ld'} -Wl,--build-id=none"
    subprocess.run(["gcc", *flags.split(), *link.split(), "-o", to, HERE / "innermost.c"], check=True)


def python() -> str:
    """Return this interpreter, by a path that is the same inside."""
    return sys.executable
