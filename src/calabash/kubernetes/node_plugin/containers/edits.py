"""What a container needs to use its slices: the shim, its slot, the driver's libraries and device nodes of the host.

No hook and no program runs in the tenant's place: files are mounted where the loader looks by itself, in images of Debian's
and of Red Hat's kind, without a cache of libraries and without a shell. The shim is named in ``/etc/ld.so.preload``, which
no variable of the pod can undo. The slot is mounted for reading, its usage page alone for writing.

A mode whose edits name no library to preload has no use for CUDA in the container, as with a card that is on its way into a
virtual machine: shim and driver then stay outside. A container that has a worker has the socket of that worker, and libraries
of ours that forward its calls under the names of the driver's: no slot, no shim, no device node and nothing of the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from calabash.adapters.cdi import ContainerEdits, DeviceNode, MountEdit
from calabash.adapters.host.pci.device_nodes import node_of
from calabash.kubernetes.node_plugin.containers.host_driver import HostDriver, library_directories, names_of
from calabash.model.device import Device, DeviceUuid
from calabash.node.agent import Grant
from calabash.node.slots.names import USAGE_FILE
from calabash.sharing.protocol import Edits

INSIDE = "/run/calabash"
SHIM_INSIDE = f"{INSIDE}/libcalabash.so"
SLOT_INSIDE = f"{INSIDE}/slot"
PRELOAD_INSIDE = "/etc/ld.so.preload"
SIM_INSIDE = f"{INSIDE}/sim"
WORKER_INSIDE = f"{INSIDE}/worker.sock"
_PRELOAD = "LD_PRELOAD"
_NVML = "libnvidia-ml."
_CONTROL = "nvidiactl"
_OTHERWISE_INSIDE = frozenset({_PRELOAD, "CALABASH_SLOT", "NVIDIA_VISIBLE_DEVICES"})
_READ = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_WRITE = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")


class EditsMaker:
    """From a grant to what its container gets.

    Args:
        shim: the library on the host.
        preload: a file on the host with the shim's path inside a container.
        driver: what of the host's driver goes into a container.
        forwarding: libraries on the host that stand in for the driver's and talk to a worker.
    """

    def __init__(self, *, shim: Path, preload: Path, driver: HostDriver, forwarding: Sequence[Path] = ()) -> None:
        self._shim = shim
        self._preload = preload
        self._driver = driver
        self._forwarding = forwarding
        write_preload(preload)

    def of(self, grant: Grant, nodes: Sequence[Path]) -> ContainerEdits:
        """All of it; ``nodes`` are those of the devices of the grant."""
        if grant.edits.worker_socket:
            return self._to_worker(grant.edits)
        uses_cuda = any(key == _PRELOAD for key, _ in grant.edits.environment)
        # "void" keeps the runtime of others from adding its own; the shim narrows the view of devices by the slot.
        env = [("NVIDIA_VISIBLE_DEVICES", "void")]
        env += [(key, value) for key, value in grant.edits.environment if key not in _OTHERWISE_INSIDE]
        slot = Path(grant.record.slot)
        mounts = [
            MountEdit(host_path=str(slot), container_path=SLOT_INSIDE, options=(*_READ, "noexec")),
            MountEdit(host_path=str(slot / USAGE_FILE), container_path=f"{SLOT_INSIDE}/{USAGE_FILE}", options=_WRITE),
        ]
        mounts += [
            MountEdit(host_path=m.path, container_path=m.inside, options=_READ if m.read_only else _WRITE)
            for m in grant.edits.mounts
        ]
        devices: list[DeviceNode] = []
        if uses_cuda:
            mounts += self._libraries()
            devices += (DeviceNode(path=f"/dev/{n.name}", host_path=str(n)) for n in (*self._driver.nodes, *nodes))
            if self._driver.state is not None:
                env.append(("CALABASH_SIM", f"{SIM_INSIDE}/{self._driver.state.name}"))
                mounts.append(
                    MountEdit(host_path=str(self._driver.state.parent), container_path=SIM_INSIDE, options=_WRITE)
                )
        for path in grant.edits.device_nodes:
            node, mount = self._node(path)
            devices += node
            mounts += mount
        return ContainerEdits(env=tuple(env), mounts=tuple(mounts), device_nodes=tuple(devices))

    def of_observer(self, nodes: Sequence[Path]) -> ContainerEdits:
        """What lets a container look at cards and take nothing of them by itself: NVML, and neither CUDA nor a slice. Who only
        asks writes as well: the driver wants its nodes opened for that, and the state of a simulated node."""
        env = [("NVIDIA_VISIBLE_DEVICES", "void")]
        mounts = _library_mounts([file for file in self._driver.libraries if file.name.startswith(_NVML)])
        control = [node for node in self._driver.nodes if node.name == _CONTROL]
        if self._driver.state is not None:
            state = self._driver.state
            env.append(("CALABASH_SIM", f"{SIM_INSIDE}/{state.name}"))
            mounts.append(MountEdit(host_path=str(state.parent), container_path=SIM_INSIDE, options=_WRITE))
        devices = tuple(DeviceNode(path=f"/dev/{n.name}", host_path=str(n)) for n in (*control, *nodes))
        return ContainerEdits(env=tuple(env), mounts=tuple(mounts), device_nodes=devices)

    def _to_worker(self, edits: Edits) -> ContainerEdits:
        said = dict(edits.environment)
        return ContainerEdits(
            env=(
                ("NVIDIA_VISIBLE_DEVICES", "void"),
                ("CUDA_VISIBLE_DEVICES", said["CUDA_VISIBLE_DEVICES"]),
                ("CALABASH_REMOTE", f"unix:{WORKER_INSIDE}"),
            ),
            mounts=(
                MountEdit(host_path=edits.worker_socket, container_path=WORKER_INSIDE, options=_WRITE),
                *_library_mounts(self._forwarding),
            ),
        )

    def _libraries(self) -> list[MountEdit]:
        return [
            MountEdit(host_path=str(self._shim), container_path=SHIM_INSIDE, options=_READ),
            MountEdit(host_path=str(self._preload), container_path=PRELOAD_INSIDE, options=_READ),
            *_library_mounts(self._driver.libraries),
        ]

    def _node(self, path: str) -> tuple[list[DeviceNode], list[MountEdit]]:
        """Of a simulated machine it lies below the machine's own root, and may be a file that stands for a device."""
        if self._driver.state is None:
            return [DeviceNode(path=path)], []
        shown = self._driver.state.parent / "root" / path.lstrip("/")
        if shown.is_char_device():
            return [DeviceNode(path=path, host_path=str(shown))], []
        return [], [MountEdit(host_path=str(shown), container_path=path, options=_WRITE)] if shown.exists() else []


class NodeEdits:
    """The same with the device nodes of this node.

    Args:
        host: where the host's file system is seen.
        devices: the cards of the node.
    """

    def __init__(self, maker: EditsMaker, host: Path, devices: Callable[[], Sequence[Device]]) -> None:
        self._maker, self._host, self._devices = maker, host, devices

    def of(self, grant: Grant, wanted: Sequence[DeviceUuid] | None = None) -> ContainerEdits:
        """What a container needs to use these devices of a grant; None: all of them."""
        if wanted is None:
            wanted = [s.device for s in grant.record.placement.slices]
        return self._maker.of(grant, self._nodes(wanted))

    def of_observer(self, wanted: Sequence[DeviceUuid]) -> ContainerEdits:
        """What a container needs to look at these devices."""
        return self._maker.of_observer(self._nodes(wanted))

    def _nodes(self, wanted: Sequence[DeviceUuid]) -> tuple[Path, ...]:
        return device_nodes(self._host, self._devices(), wanted)


def write_preload(path: Path) -> None:
    """The host's copy of a container's ``/etc/ld.so.preload``."""
    text = SHIM_INSIDE + "\n"
    if not path.exists() or path.read_text() != text:
        coming = path.with_name(path.name + ".new")
        coming.write_text(text)
        coming.chmod(0o644)
        coming.rename(path)


def _library_mounts(files: Sequence[Path]) -> list[MountEdit]:
    return [
        MountEdit(host_path=str(file), container_path=f"{directory}/{name}", options=_READ)
        for file in files
        for directory in library_directories()
        for name in names_of(file)
    ]


def device_nodes(host: Path, devices: Sequence[Device], wanted: Sequence[DeviceUuid]) -> tuple[Path, ...]:
    """The nodes of these devices, as the host names them; those of simulated cards are none."""
    by_uuid = {device.uuid: device for device in devices}
    found = (node_of(host, by_uuid[uuid].pci_bus_id) for uuid in wanted if uuid in by_uuid)
    return tuple(Path("/") / path.relative_to(host) for path in found if path is not None and path.is_char_device())
