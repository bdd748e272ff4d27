"""NVIDIA's own container toolkit and device plug-in, unmodified, on a simulated node with MIG partitions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.go_programs import BUILD_S, UnavailableError, program
from tests.contract.node_root import in_node_root
from tests.native.simnode import Node, compile_holder, simctl, until

pytestmark = [
    pytest.mark.complete,
    pytest.mark.slow,
    pytest.mark.timeout(BUILD_S + 120),
    pytest.mark.skipif(shutil.which("go") is None, reason="no Go to build NVIDIA's tools with"),
    pytest.mark.skipif(os.geteuid() != 0, reason="MIG and mounts need root"),
]
DIVIDE = """
h = handles()[0]
nvmlDeviceSetMigMode(h, 1)
for gi_profile, ci_profiles in LAYOUT:
    gi = nvmlDeviceCreateGpuInstance(h, gi_profile)
    for ci_profile in ci_profiles: nvmlGpuInstanceCreateComputeInstance(gi, ci_profile)
migs = []
for i in range(nvmlDeviceGetMaxMigDeviceCount(h)):
    try: m = nvmlDeviceGetMigDeviceHandleByIndex(h, i)
    except NVMLError: break
    migs.append([nvmlDeviceGetUUID(m), nvmlDeviceGetGpuInstanceId(m), nvmlDeviceGetComputeInstanceId(m)])
answer = migs
"""
PARTS = ((9, (1, 0)), (14, (1,)), (19, (0,)))  # a half in two compute instances, a third, a seventh
WHOLES = ((9, (2,)), (14, (1,)), (19, (0,)))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "node.state", "2xA100-40GB", compile_holder())
    assert simctl("root", made.state).returncode == 0
    yield made
    made.close()


def built(name: str) -> Path:
    """Return a program of NVIDIA's; skip the test if its modules cannot be fetched."""
    try:
        return program(name)
    except UnavailableError as error:
        pytest.skip(str(error))


def divide(node: Node, layout: object) -> list[tuple[str, int, int]]:
    """Partition the first card; return UUID, GPU instance and compute instance of each MIG device."""
    return [(uuid, gi, ci) for uuid, gi, ci in node.nvml(DIVIDE.replace("LAYOUT", repr(layout)))]


def nodes_of(node: Node, gi: int, ci: int) -> list[str]:
    """Return the device nodes that a MIG device of the first card needs, by the driver's own capability files."""
    top = node.state.parent / "root/proc/driver/nvidia/capabilities/gpu0/mig" / f"gi{gi}"
    minors = [int((top / part / "access").read_text().split()[1]) for part in (".", f"ci{ci}")]
    return ["/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors)]


def spec_devices(path: Path) -> dict[str, list[str]]:
    """Return the device nodes of each device of a CDI specification."""
    spec: dict[str, Any] = json.loads(path.read_text())
    return {
        device["name"]: [n["path"] for n in device["containerEdits"].get("deviceNodes", [])]
        for device in spec["devices"]
    }


def generate(node: Node) -> dict[str, list[str]]:
    directory = node.state.parent
    out = directory / "cdi.json"
    command: list[str | Path] = [
        built("nvidia-ctk"),
        "cdi",
        "generate",
        "--mode",
        "nvml",
        "--driver-root",
        directory / "root",
    ]
    done = subprocess.run(
        in_node_root(directory, [*command, "--dev-root", "/", "--format", "json", "--output", out]),
        env=node.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return spec_devices(out)


def test_nvidia_ctk_names_the_nodes_of_every_mig_device_and_of_whole_cards(node: Node) -> None:
    migs = divide(node, PARTS)
    assert len(migs) == 4
    devices = generate(node)
    whole = node.show()["devices"][1]["uuid"]
    expected = {uuid: nodes_of(node, gi, ci) for uuid, gi, ci in migs}
    expected |= {f"0:{i}": nodes_of(node, gi, ci) for i, (_, gi, ci) in enumerate(migs)}
    expected |= {"1": ["/dev/nvidia1"], whole: ["/dev/nvidia1"]}
    everything = devices.pop("all")
    assert devices == expected
    assert set(everything) == {path for paths in expected.values() for path in paths}


def test_nvidia_ctk_mounts_the_libraries_of_the_nodes_driver(node: Node) -> None:
    generate(node)
    spec = json.loads((node.state.parent / "cdi.json").read_text())
    edits = spec["containerEdits"]
    libraries = {Path(mount["hostPath"]).name for mount in edits["mounts"]}
    assert libraries == {"libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05"}
    assert {n["path"] for n in edits["deviceNodes"]} >= {"/dev/nvidiactl", "/dev/nvidia-uvm"}


def test_destroyed_mig_device_is_no_longer_in_the_specification(node: Node) -> None:
    migs = divide(node, WHOLES)
    assert {uuid for uuid, _, _ in migs} <= generate(node).keys()
    node.nvml(
        """
        gi = nvmlDeviceGetGpuInstanceById(handles()[0], 3)
        nvmlComputeInstanceDestroy(nvmlGpuInstanceGetComputeInstanceById(gi, 0))
        nvmlGpuInstanceDestroy(gi)
        answer = 0
        """
    )
    left = generate(node)
    assert {uuid for uuid, gi, _ in migs if gi != 3} == {name for name in left if name.startswith("MIG-")}


def test_the_device_plugin_serves_a_resource_for_each_profile_and_names_its_nodes(node: Node, tmp_path: Path) -> None:
    migs = divide(node, WHOLES)
    program, log = built("device-plugin"), tmp_path / "log"
    flags: dict[str, str | Path] = {
        "--mig-strategy": "mixed",
        "--kubelet-socket": "",  # there is no kubelet to register with
        "--device-discovery-strategy": "nvml",
        "--device-list-strategy": "cdi-annotations",
        "--driver-root": tmp_path / "root",
        "--driver-root-ctr-path": tmp_path / "root",
        "--dev-root": "/",
    }
    command = in_node_root(tmp_path, [program, *(word for flag in flags.items() for word in flag)])
    wanted = {"nvidia.com/gpu", *(f"nvidia.com/mig-{name}" for name in ("3g.20gb", "2g.10gb", "1g.5gb"))}
    with log.open("w") as out:
        plugin = subprocess.Popen(command, env=node.environment, stdout=out, stderr=out)
        try:
            until(
                lambda: plugin.poll() is not None or log.read_text().count("Registered device plugin for") == 4,
                "the plug-in serves four resources",
            )
        finally:
            plugin.terminate()
            plugin.wait(timeout=60)
    served = {line.split("'")[1] for line in log.read_text().splitlines() if "Starting to serve" in line}
    assert served == wanted, log.read_text()[-4000:]
    devices = spec_devices(tmp_path / "var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json")
    for uuid, gi, ci in migs:
        assert set(devices[uuid]) >= set(nodes_of(node, gi, ci))
