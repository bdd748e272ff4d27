"""Attach devices to virtual machines of libvirt: the XML of a device, and runs of ``virsh`` with a deadline."""

from __future__ import annotations

import re
import subprocess

from calabash.adapters.host.children import child_environment, find_program, run_program
from calabash.adapters.host.pci.devices import pci_address
from calabash.model.errors import CalabashError, Reason

ANSWER_S = 60.0
# Variables by which virsh finds the user's libvirt.
_CONNECTION = (
    "DBUS_SESSION_BUS_ADDRESS",
    "LIBVIRT_AUTH_FILE",
    "LIBVIRT_DEFAULT_URI",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
)
_DOMAIN = re.compile(r"[A-Za-z0-9_.+@:][A-Za-z0-9_.+@:-]{0,254}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_PCI = """\
<hostdev mode='subsystem' type='pci' managed='no'>
  <source>
    <address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/>
  </source>
</hostdev>
"""
_MEDIATED = """\
<hostdev mode='subsystem' type='mdev' managed='no' model='vfio-pci'>
  <source>
    <address uuid='{uuid}'/>
  </source>
</hostdev>
"""


def device_xml(name: str) -> str:
    """Return the libvirt XML of a host device: a PCI address, or the UUID of a mediated device.

    The device is bound to vfio already; ``managed='no'`` keeps libvirt from binding it. Raises
    CalabashError(BAD_REQUEST) if the name is neither.
    """
    if _UUID.fullmatch(name):
        return _MEDIATED.format(uuid=name)
    if pci_address(name) != name:
        raise CalabashError(f"{name[:64]!r} is neither a PCI address nor a UUID")
    domain, bus, rest = name.split(":")
    slot, _, function = rest.partition(".")
    return _PCI.format(domain=domain, bus=bus, slot=slot, function=function)


def require_domain(name: str) -> str:
    """Return the name of a virtual machine if it is valid. Raises CalabashError(BAD_REQUEST)."""
    if _DOMAIN.fullmatch(name) is None:
        raise CalabashError(f"{name[:80]!r} is not a valid name of a virtual machine", hint="see `virsh list --all`")
    return name


def attach(domain: str, xml: str) -> None:
    """Attach a device to the virtual machine ``domain``, now or at its next start. Raises CalabashError.

    ``xml`` describes the device, as ``device_xml`` returns it.
    """
    _virsh("attach-device", domain, xml)


def detach(domain: str, xml: str) -> None:
    """Detach a device from the virtual machine ``domain``; does nothing if it is not attached.

    ``xml`` describes the device, as ``device_xml`` returns it.

    Raises CalabashError while the virtual machine does not release the device.
    """
    try:
        _virsh("detach-device", domain, xml)
    except CalabashError as error:
        if not re.search(r"not found|no such device|failed to get domain", error.message, re.IGNORECASE):
            raise


def _virsh(verb: str, domain: str, xml: str) -> None:
    program = find_program("virsh")
    if program is None:
        raise CalabashError(
            "virsh is not installed on this machine",
            reason=Reason.NOT_FOUND,
            hint="install libvirt-clients, or take the XML: calabash device vm attach --device ID --xml",
        )
    words = [str(program), "--quiet", verb, "--current", "--domain", require_domain(domain), "--file", "/dev/stdin"]
    try:
        done = run_program(words, text=xml, timeout_s=ANSWER_S, environment=child_environment(_CONNECTION))
    except subprocess.TimeoutExpired as error:
        raise CalabashError(
            f"virsh {verb} of {domain} took more than {ANSWER_S:g} s",
            reason=Reason.TIMEOUT,
            hint="check that libvirtd runs and answers",
        ) from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[:400] or f"it ended with {done.returncode}"
        raise CalabashError(f"virsh {verb} of {domain}: {said}", reason=Reason.CONFLICT, hint="see `virsh list --all`")
