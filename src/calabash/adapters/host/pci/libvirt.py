"""Virtual machines of libvirt: a device as its XML, and ``virsh`` to put it in and take it out, never waited for for long."""

from __future__ import annotations

import re
import subprocess

from calabash.adapters.host.children import child_environment, find_program, run_program
from calabash.adapters.host.pci.devices import pci_address
from calabash.model.errors import CalabashError, Reason

ANSWER_S = 60.0
# How a user's libvirt is reached.
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
    """The XML of a device of the host: a PCI address, or the UUID of a mediated device. It is bound already, and libvirt is
    not to bind it itself (``managed='no'``)."""
    if _UUID.fullmatch(name):
        return _MEDIATED.format(uuid=name)
    if pci_address(name) != name:
        raise CalabashError(f"{name[:64]!r} is neither a PCI address nor a UUID")
    domain, bus, rest = name.split(":")
    slot, _, function = rest.partition(".")
    return _PCI.format(domain=domain, bus=bus, slot=slot, function=function)


def require_domain(name: str) -> str:
    """The name of a virtual machine, if it can be one. Raises BAD_REQUEST."""
    if _DOMAIN.fullmatch(name) is None:
        raise CalabashError(f"{name[:80]!r} is no name of a virtual machine", hint="see `virsh list --all`")
    return name


def attach(domain: str, xml: str) -> None:
    """Put a device into a virtual machine: at once while it runs, else for when it starts."""
    _virsh("attach-device", domain, xml)


def detach(domain: str, xml: str) -> None:
    """Take it out again; harmless when it is not in there. Raises CalabashError while the machine does not let go."""
    try:
        _virsh("detach-device", domain, xml)
    except CalabashError as error:
        if not re.search(r"not found|no such device|failed to get domain", error.message, re.IGNORECASE):
            raise


def _virsh(verb: str, domain: str, xml: str) -> None:
    program = find_program("virsh")
    if program is None:
        raise CalabashError(
            "there is no virsh on this machine",
            reason=Reason.NOT_FOUND,
            hint="install libvirt-clients, or take the XML: calabash vm attach --gpu ID --xml",
        )
    words = [str(program), "--quiet", verb, "--current", "--domain", require_domain(domain), "--file", "/dev/stdin"]
    try:
        done = run_program(words, text=xml, timeout_s=ANSWER_S, environment=child_environment(_CONNECTION))
    except subprocess.TimeoutExpired as error:
        raise CalabashError(
            f"virsh {verb} of {domain} took more than {ANSWER_S:g} s",
            reason=Reason.TIMEOUT,
            hint="is libvirtd well?",
        ) from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[:400] or f"it ended with {done.returncode}"
        raise CalabashError(f"virsh {verb} of {domain}: {said}", reason=Reason.CONFLICT, hint="see `virsh list --all`")
