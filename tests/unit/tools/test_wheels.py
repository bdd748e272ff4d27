"""Wheels: they hold the C libraries of one machine and name it; none is made without the libraries."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import types
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from tools import wheel

NATIVE = wheel.ROOT / "src/calabash/_native"
TLS = "remote/libcalabash-tls.so"
LIBRARIES = ("lib/libcalabash.so", "lib/libcalabash-page.so", "simgpu/libcuda.so.1", "simgpu/libnvidia-ml.so.1", TLS)
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace the module of hatchling that the build hook loads; the hook takes only a base class of it."""
    name = "hatchling.builders.hooks.plugin.interface"
    interface = types.ModuleType(name)
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, interface)
    spec = spec_from_file_location("wheel_hook", wheel.ROOT / "tools/wheel_hook.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def libraries(directory: Path, machine: int, needs: bytes = b"\0GLIBC_2.2.5\0GLIBC_2.17\0") -> Path:
    for name in LIBRARIES:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + needs)
    return directory


def files_beside_modules() -> set[str]:
    """Return the files of the package besides modules and libraries, as a wheel names them."""
    package = wheel.ROOT / "src" / "calabash"
    files = [p for p in package.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc") and p.name[0] != "."]
    names = {str(p.relative_to(package.parent)) for p in files if package / "_native" not in p.parents}
    assert {"calabash/gateway/web/templates/base.html", "calabash/py.typed"} <= names
    return names


def test_the_name_says_the_machine_and_the_youngest_c_library_that_is_needed(hook: Any, tmp_path: Path) -> None:
    native = libraries(tmp_path, 183)
    assert hook.tag_of(native) == "py3-none-manylinux_2_17_aarch64"
    (native / "simgpu/more.so").write_bytes(b"\x7fELF" + bytes(14) + b"\xb7\0" + b"\0GLIBC_2.38\0")
    assert hook.tag_of(native) == "py3-none-manylinux_2_38_aarch64"
    assert hook.tag_of(NATIVE).endswith(platform.machine())


def test_no_wheel_is_made_without_libraries_or_with_those_of_two_machines(hook: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"libcalabash.so, .* are not in .*hint: make native"):
        hook.tag_of(tmp_path)
    libraries(tmp_path, 62)
    (tmp_path / LIBRARIES[0]).write_bytes(b"\x7fELF" + bytes(14) + b"\xb7\0")
    with pytest.raises(RuntimeError, match="libraries for aarch64, x86_64"):
        hook.tag_of(tmp_path)


def test_no_wheel_is_made_without_tls_unless_that_is_permitted(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = libraries(tmp_path / "native", 62)
    wheel.require_tls(native)
    (native / TLS).unlink()
    monkeypatch.setattr(wheel, "libraries", lambda machine: native)
    with pytest.raises(wheel.BuildError, match=f"no TLS, .*{TLS} is missing; hint: install libssl-dev"):
        wheel.build(tmp_path)
    with pytest.raises(RuntimeError, match=f"no TLS: {TLS} is missing, .*hint: install libssl-dev"):
        hook.tag_of(native)
    monkeypatch.setenv("CALABASH_WITHOUT_TLS", "1")
    wheel.require_tls(native)
    assert hook.tag_of(native) == "py3-none-manylinux_2_17_x86_64"


def test_libraries_of_the_wheel_take_little_space(tmp_path: Path) -> None:
    """OpenSSL, which takes about 5 MB, is in one of them."""
    made = wheel.stripped(NATIVE, platform.machine(), tmp_path / "native")
    assert sum(path.stat().st_size for path in made.rglob("*") if path.is_file()) < 12 << 20


@pytest.mark.parametrize("machine", wheel.MACHINES)
def test_the_wheel_of_a_machine_has_its_libraries(tmp_path: Path, machine: str) -> None:
    if machine != platform.machine() and shutil.which(f"{machine}-linux-gnu-gcc") is None:
        pytest.skip(f"needs gcc-{machine}-linux-gnu: tools/bootstrap --tests")
    made = wheel.build(tmp_path, machine)
    assert made.name.startswith("calabash-")
    with zipfile.ZipFile(made) as content:
        (about,) = (name for name in content.namelist() if name.endswith(".dist-info/WHEEL"))
        said = dict(line.split(": ", 1) for line in content.read(about).decode().split("\n") if ": " in line)
        assert said["Root-Is-Purelib"] == "false"
        assert said["Tag"] in made.name
        assert said["Tag"].endswith(f"_{machine}")
        native = [name for name in content.namelist() if name.startswith("calabash/_native/")]
        assert {name.removeprefix("calabash/_native/") for name in native} >= {*LIBRARIES, "simgpu/calabash-simctl"}
        elf = [content.read(name)[:20] for name in native]
        assert files_beside_modules() <= set(
            content.namelist()
        )  # templates, styles and scripts of the console, migrations
    machines = {int.from_bytes(head[18:20], "little") for head in elf if head[:4] == b"\x7fELF"}
    assert machines == {ELF_MACHINES[machine]}


def test_a_machine_without_a_compiler_is_refused_with_the_way_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    other = next(name for name in wheel.MACHINES if name != platform.machine())
    with pytest.raises(
        wheel.BuildError, match=f"{other}-linux-gnu-gcc is not installed; hint: tools/bootstrap --tests"
    ):
        wheel.libraries(other)


def test_nothing_of_the_chart_or_the_containerfile_asks_for_one_machine() -> None:
    files = [path for path in (wheel.ROOT / "charts").rglob("*") if path.is_file()]
    assert files
    for path in [*files, wheel.ROOT / "Containerfile"]:
        for word in ("kubernetes.io/arch", "amd64", "x86_64-linux", "x86-64"):
            assert word not in path.read_text().replace("--arch x86_64", ""), f"{path.name} says {word}"


def test_libraries_of_a_wheel_have_no_debug_information_and_second_names_load_the_first(tmp_path: Path) -> None:
    made = wheel.stripped(NATIVE, platform.machine(), tmp_path / "native")
    assert not [path for path in made.rglob("*") if path.is_symlink()]
    assert {path.relative_to(made) for path in made.rglob("*")} == {p.relative_to(NATIVE) for p in NATIVE.rglob("*")}
    assert not [path for path in made.rglob("*") if path.is_file() and b"\0.debug_info\0" in path.read_bytes()]
    for second in (
        "simgpu/libcuda.so",
        "simgpu/libcuda.so.580.95.05",
        "remote/libnvidia-ml.so",
        "remote/span/libcuda.so",
    ):
        assert (made / second).stat().st_size < 20_000
        symbol = "nvmlInit_v2" if "nvidia-ml" in second else "cuInit"
        program = f"import ctypes; ctypes.CDLL({str(made / second)!r}).{symbol}"
        subprocess.run([sys.executable, "-S", "-c", program], check=True)
