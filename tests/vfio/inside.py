"""Cases of the product's own code that run as root inside the emulated machine, on a real kernel.

    python -m tests.vfio.inside TREE INNERMOST [no-iommu | times]

Every line that begins with ``@`` is a JSON object: a case, its result and its output. The test outside decides which cases
there must be, and what they must report.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import errorcode
from pathlib import Path
from typing import Any, cast

from tools.emulated import Emulated

from calabash.adapters.host.pci.devices import PciTree
from calabash.adapters.host.pci.vfio import Vfio
from calabash.adapters.host.pci.virtual_functions import VirtualFunctions
from calabash.adapters.host.sysfs_writer import BlockedError, HelperWriter
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Device, DeviceReading, DeviceUuid, NodeName
from calabash.model.errors import CalabashError
from calabash.model.messages import in_full
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.devices.inventory import Inventory
from calabash.node.modes.passthrough.executor import PassthroughExecutor
from calabash.node.modes.passthrough.machine import PLAIN, Machine
from calabash.node.modes.protocol import NodeTools

SHARED, SECOND = "0000:01:00.0", "0000:01:00.1"  # one NVMe card with two functions
EDU = "0000:02:00.0"
BEHIND, NEIGHBOUR = "0000:04:01.0", "0000:04:02.0"  # in one group, behind a bridge
BRIDGE = "0000:00:03.0"
DIVIDED = "0000:05:00.0"
SHORT_S = 2.5
WAIT_S = 120.0
BUS = Path("/sys/bus/pci")

tree = PciTree()
writer = HelperWriter()


def report(case: str, **said: object) -> None:
    """Print the result of a case as one line for the test outside."""
    at = float(Path("/proc/uptime").read_text().split()[0])
    print("@" + json.dumps({"case": case, "at": at, **said}), flush=True)


def refused(call: Callable[[], object]) -> dict[str, str]:
    """Return the reason and the message with which a call of the product was refused."""
    try:
        call()
    except CalabashError as error:
        return {"reason": str(error.reason), "message": error.message, "hint": error.hint}
    return {"reason": "", "message": "it was not refused", "hint": ""}


def kernel_says(file: str, text: str) -> str:
    """Write to a file of the kernel; return the name of the error, or "" if the kernel accepts it."""
    try:
        writer.write(BUS / file, text, timeout_s=10)
    except BlockedError:
        return "blocked"
    except OSError as error:
        return errorcode[error.errno or 0]
    return ""


def load(parts: Emulated, *names: str) -> None:
    """Load modules of the kernel."""
    for module in parts.modules(*names):
        subprocess.run(["busybox", "insmod", module], check=False, capture_output=True)


class Inner:
    """A virtual machine inside the emulated machine."""

    def __init__(self, parts: Emulated, program: Path) -> None:
        self._parts, self._program = parts, program

    def _command(self, *addresses: str) -> list[str]:
        devices = (word for address in addresses for word in ("-device", f"vfio-pci,host={address}"))
        words = (
            "-M pc -bios qboot.rom -accel tcg -cpu qemu64 -m 32 -nodefaults -nographic -no-reboot "
            "-device isa-debug-exit,iobase=0xf4"
        )
        return [*self._parts.qemu, *words.split(), *devices]

    def use(self, *addresses: str) -> str:
        """Let the machine's program use devices; return its output, or QEMU's error output."""
        command = [*self._command(*addresses), "-serial", "stdio", "-kernel", str(self._program)]
        environment = {**os.environ, "LD_LIBRARY_PATH": self._parts.libraries}
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=WAIT_S, check=False
        )
        return (done.stdout + done.stderr).decode(errors="replace")[-1500:]

    @contextmanager
    def device_held(self, address: str) -> Iterator[None]:
        """Run a paused machine that holds the device, for the block."""
        environment = {**os.environ, "LD_LIBRARY_PATH": self._parts.libraries}
        process = subprocess.Popen(
            [*self._command(address), "-S"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
        )
        try:
            wait_for(lambda: has_device(process.pid) or process.poll() is not None)
            yield
        finally:
            process.kill()
            process.communicate()


def has_device(pid: int) -> bool:
    """Return True if a process has a device of VFIO open, and not only its group."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "vfio-device" in os.readlink(descriptor):
                return True
        except OSError:
            continue
    return False


def wait_for(true: Callable[[], bool]) -> bool:
    """Wait for a condition; return True if it became true in time."""
    until = time.monotonic() + WAIT_S
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def wait_for_news(executor: PassthroughExecutor) -> list[str]:
    """Return the messages of the executor as soon as there are some."""
    news: list[str] = []

    def told() -> bool:
        news.extend(map(in_full, executor.verify([])))
        return bool(news)

    wait_for(told)
    return news


def disk_of(address: str) -> Path:
    """Return the disk of a controller."""
    return next((n for n in tree.nodes(address) if re.fullmatch(r"nvme\d+n1", n.name)), Path("/dev/none"))


def content(disk: Path) -> str:
    """Return the beginning of a disk; "" while it is not ready."""
    try:
        with disk.open("rb") as file:
            return file.read(512).rstrip(b"\0").decode()
    except OSError:
        return ""


def holders(node: Path) -> str:
    return machine.users([node])


machine = Machine(
    root=Path("/"),
    writer=writer,
    vfio=Vfio(tree, writer, load=lambda _: None, holders=holders, timeout_s=SHORT_S),
    functions=VirtualFunctions(tree, writer, timeout_s=SHORT_S),
    accepts=lambda device: not device.is_bridge,
)


class Cards:
    """GPU driver whose cards are devices of this machine; it lists those that VFIO does not have."""

    vendor = "emulated"

    def devices(self) -> tuple[Device, ...]:
        here = [a for a in (EDU, SHARED, BEHIND, DIVIDED) if tree.get(a).driver != "vfio-pci"]
        return tuple(
            Device(
                uuid=DeviceUuid(f"GPU-{address}"),
                index=index,
                vendor=self.vendor,
                model="Emulated card",
                memory_mib=4096,
                pci_bus_id=address,
            )
            for index, address in enumerate(here)
        )

    def read(self, uuid: DeviceUuid) -> DeviceReading:
        if tree.get(uuid.removeprefix("GPU-")).driver == "vfio-pci":
            raise CalabashError("its driver does not see it")
        return DeviceReading(uuid=uuid, memory_used_mib=0, utilization_percent=0, temperature_c=30, power_w=1.0)


def record(name: str, address: str, *, profile: str = "") -> AllocationRecord:
    part = Slice(device=DeviceUuid(f"GPU-{address}"), memory_mib=4096, core_percent=100, vf=profile)
    return AllocationRecord(
        id=AllocationId(name),
        state=AllocationState.GRANTED,
        request=GpuRequest(mode=ModeName("passthrough"), vf=profile, standing=True),
        placement=Placement(node=NodeName("inside"), mode=ModeName("passthrough"), slices=(part,)),
        uid=0,
    )


def agent() -> tuple[Inventory, PassthroughExecutor]:
    """Return inventory and executor of the node's agent, as after a start."""
    inventory = Inventory([cast("Any", Cards())])
    home = Path("/run/home")
    home.mkdir(exist_ok=True)
    tools = NodeTools(home=home, inventory=inventory, library=home / "none", environment={}, device_root=Path("/"))
    executor = PassthroughExecutor(tools, machine)
    executor.start()
    return inventory, executor


def without_iommu(parts: Emulated) -> None:
    load(parts, "vfio_pci", "vfio_iommu_type1")
    report("no IOMMU", translates=tree.has_iommu(), **refused(lambda: machine.vfio.bind(EDU)))
    kernel_says(f"devices/{EDU}/driver_override", "vfio-pci")
    report("the kernel without IOMMU", bind=kernel_says("drivers/vfio-pci/bind", EDU))


def modules_missing(parts: Emulated) -> None:
    report("no module", **refused(lambda: machine.vfio.bind(EDU)))
    kernel_says(f"devices/{EDU}/driver_override", "vfio-pci")
    report("the kernel without the module", bind=kernel_says("drivers/vfio-pci/bind", EDU))
    kernel_says(f"devices/{EDU}/driver_override", "\n")  # otherwise the module binds it when it is loaded
    load(parts, "vfio_pci")
    report("no second module", **refused(lambda: machine.vfio.bind(EDU)))
    load(parts, "vfio_iommu_type1")
    report(
        "what the kernel refuses",
        no_override=kernel_says("drivers/vfio-pci/bind", EDU),
        no_device=kernel_says("drivers/vfio-pci/bind", "0000:99:00.0"),
        no_device_to_probe=kernel_says("drivers_probe", "0000:99:00.0"),
        not_bound=kernel_says("drivers/vfio-pci/unbind", EDU),
    )
    report("no such device", **refused(lambda: machine.vfio.bind("0000:99:00.0")))
    report("a bridge", **refused(lambda: machine.vfio.bind(BRIDGE)))


def a_card_goes_and_comes(inner: Inner) -> None:
    inventory, executor = agent()
    held = record("edu", EDU)
    executor.prepare(held)
    began = time.monotonic()
    executor.provide(held)
    bound_s = time.monotonic() - began
    executor.provide(held)  # a repeated call returns the same
    edits = executor.edits(held)
    addresses = dict(edits.environment)["CALABASH_PCI"]
    report("bound", driver=tree.get(EDU).driver, addresses=addresses, nodes=edits.device_nodes, seconds=bound_s)
    report("used inside", said=inner.use(addresses))
    changes = inventory.observe(idle=lambda _: False)
    report(
        "lent is not lost", changes=len(changes), health=[d.health for d in inventory.devices() if d.pci_bus_id == EDU]
    )
    with inner.device_held(EDU):
        said = inner.use(EDU)
        report("two users of a group", said=said[-300:])
        report("unbind blocks", **refused(lambda: machine.vfio.give_back(EDU, "")), still=tree.get(EDU).driver)
        executor.leave(held)
        returning = [d.health for d in inventory.devices() if d.pci_bus_id == EDU]
        news = wait_for_news(executor)
        report("on its way back", health=returning, news=news)
    began = time.monotonic()
    back = wait_for(lambda: inventory.lent.loan(DeviceUuid(f"GPU-{EDU}")) is None)
    report("back", back=back, driver=tree.get(EDU).driver, seconds=time.monotonic() - began)


def a_card_of_two_functions(inner: Inner) -> None:
    _, executor = agent()
    held = record("nvme", SHARED)
    wait_for(lambda: disk_of(SHARED).exists())
    with disk_of(SHARED).open("rb") as file:
        reader = subprocess.Popen(["sleep", "600"], stdin=file)
    report("open", **refused(lambda: executor.provide(held)), driver=tree.get(SHARED).driver, pid=reader.pid)
    executor.leave(held)
    reader.kill()
    reader.wait()
    began = time.monotonic()
    executor.provide(held)
    bound_s = time.monotonic() - began
    report("companions", drivers=[tree.get(a).driver for a in (SHARED, SECOND)], said=inner.use(SHARED, SECOND))
    again, restarted = agent()  # the pool dies, and the next one finds the given device
    restarted.recover([held])
    listed = [d.pci_bus_id for d in again.devices()]
    report("after a restart", listed=listed, health=[d.health for d in again.devices() if d.pci_bus_id == SHARED])
    third, after = agent()
    uuid = DeviceUuid(f"GPU-{SHARED}")
    began = time.monotonic()
    after.recover([])  # and one that finds the allocation ended
    wait_for(lambda: third.lent.loan(uuid) is None)
    report("times of a card of two functions", bind_s=bound_s, return_s=time.monotonic() - began)
    third.observe(idle=lambda _: True)
    health = [d.health for d in third.devices() if d.uuid == uuid]
    wait_for(lambda: content(disk_of(SHARED)) != "")
    report(
        "returned to its driver",
        drivers=[tree.get(a).driver for a in (SHARED, SECOND)],
        health=[str(h) for h in health],
        disk=content(disk_of(SHARED)),
        book=Path("/run/home/passthrough.json").exists(),
    )


def a_group_of_several(inner: Inner) -> None:
    _, executor = agent()
    held = record("behind", BEHIND)
    report("not viable", **refused(lambda: executor.provide(held)), driver=tree.get(BEHIND).driver)
    machine.vfio.bind(BEHIND)
    report("the kernel binds it all the same", driver=tree.get(BEHIND).driver, said=inner.use(BEHIND)[-300:])
    machine.vfio.give_back(BEHIND, "")
    kernel_says(f"devices/{NEIGHBOUR}/driver/unbind", NEIGHBOUR)
    executor.provide(held)
    report("viable without the neighbour's driver", said=inner.use(BEHIND))
    with inner.device_held(BEHIND):
        report(
            "the neighbour's driver while the group is owned",
            bind=kernel_says("drivers/virtio-pci/bind", NEIGHBOUR),
            probe=kernel_says("drivers_probe", NEIGHBOUR),
        )
        neighbour = tree.get(NEIGHBOUR).driver
    executor.leave(held)
    wait_for(lambda: tree.get(BEHIND).driver == "")
    kernel_says("drivers_probe", NEIGHBOUR)
    report("the neighbour afterwards", meanwhile=neighbour, driver=tree.get(NEIGHBOUR).driver)


def parts_of_a_card(inner: Inner) -> None:
    functions = machine.functions
    report("too many functions", **refused(lambda: functions.make(DIVIDED, 3)))
    report("no SR-IOV", **refused(lambda: functions.make(EDU, 1)))
    inventory, executor = agent()
    device = next(d for d in inventory.devices() if d.pci_bus_id == DIVIDED)
    report("profiles", profiles=[(p.name, p.memory_mib, p.count) for p in device.vf_profiles])
    first, second = record("one", DIVIDED, profile=PLAIN), record("two", DIVIDED, profile=PLAIN)
    for held in (first, second):
        executor.provide(held)
    report("another number of functions", **refused(lambda: functions.make(DIVIDED, 1)))
    third = record("three", DIVIDED, profile=PLAIN)
    report("one too many", **refused(lambda: executor.provide(third)))
    executor.leave(third)
    whole = record("whole", DIVIDED)
    report("whole while divided", **refused(lambda: executor.provide(whole)))
    given = [dict(executor.edits(held).environment)["CALABASH_PCI"] for held in (first, second)]
    groups = [tree.get(address).group for address in given]
    report("functions", given=given, apart=groups[0] != groups[1], said=inner.use(given[0]))
    with inner.device_held(given[1]):
        report("functions in use", **refused(lambda: functions.unmake(DIVIDED)))
    for held in (first, second):
        executor.leave(held)
    gone = wait_for(lambda: tree.get(DIVIDED).vfs == ())
    report("functions gone", gone=gone, driver=tree.get(DIVIDED).driver)


def main() -> None:
    parts, program = Emulated(tree=Path(sys.argv[1])), Path(sys.argv[2])
    if "no-iommu" in sys.argv:
        without_iommu(parts)
        return
    inner = Inner(parts, program)
    modules_missing(parts)
    a_card_of_two_functions(inner)
    if "times" in sys.argv:
        return
    for chapter in (a_card_goes_and_comes, a_group_of_several, parts_of_a_card):
        chapter(inner)
    wait_for(lambda: not writer.blocked())
    report("done", helpers=writer.blocked())


if __name__ == "__main__":
    main()
