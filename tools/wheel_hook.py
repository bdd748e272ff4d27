"""Build hook of the wheel: adds the C libraries and names the machine in the wheel's tag.

``CALABASH_WHEEL_NATIVE`` names a directory as ``make -C native`` fills it, of any machine; by default it is the build of this
machine. No wheel is made without the libraries, nor without TLS unless ``CALABASH_WITHOUT_TLS=1`` is set. The required version
of the C library is read from the libraries themselves.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine
_NEEDED = ("lib/libcalabash.so", "lib/libcalabash-page.so", "simgpu/libcuda.so.1", "simgpu/libnvidia-ml.so.1")
_TLS = "remote/libcalabash-tls.so"


def tag_of(native: Path) -> str:
    """Return the tag, as ``py3-none-manylinux_2_34_aarch64``. Raises RuntimeError if libraries are missing or mixed."""
    missing = [name for name in _NEEDED if not (native / name).is_file()]
    if missing:
        raise RuntimeError(f"{', '.join(missing)} are not in {native}; hint: make native, or python -m tools.wheel")
    if not (native / _TLS).is_file() and os.environ.get("CALABASH_WITHOUT_TLS") != "1":
        raise RuntimeError(
            f"the libraries in {native} have no TLS: {_TLS} is missing, so that programs could not use devices of other"
            " machines; hint: install libssl-dev, then make native; CALABASH_WITHOUT_TLS=1 permits a wheel without TLS"
        )
    machines, glibc = set(), 17
    for path in native.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        if content[:4] != b"\x7fELF":
            continue
        machines.add(int.from_bytes(content[18:20], "little"))
        glibc = max([glibc, *(int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", content))])
    names = sorted(_MACHINES.get(machine, str(machine)) for machine in machines)
    if len(names) != 1:
        raise RuntimeError(f"{native} has libraries for {', '.join(names)}; hint: make clean native")
    return f"py3-none-manylinux_2_{glibc}_{names[0]}"


class NativeHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Hook of hatchling that completes the wheel's content and tag."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        native = Path(os.environ.get("CALABASH_WHEEL_NATIVE") or Path(self.root) / "src/calabash/_native")
        build_data["pure_python"] = False
        build_data["tag"] = tag_of(native)
        build_data["force_include"][str(native)] = "calabash/_native"
        web = Path(self.root) / "src/calabash/_web"
        if web.is_dir():  # the scripts of others that the console's pages use
            build_data["force_include"][str(web)] = "calabash/_web"
