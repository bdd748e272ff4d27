"""The systemd unit of the system pool.

The pool starts jobs as their users, moves programs into control groups, creates network namespaces and opens devices, so that
the unit confines it only where users' programs are not affected: jobs inherit its system call filter and its bounding set, but
no user has the capabilities and system calls that are removed. There is no mount namespace of its own: network namespaces must
be visible on the whole machine, and jobs use the files of their users.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

UNIT = "calabash.service"
# Capabilities that neither the pool nor a process that it starts for root needs.
_REMOVED_CAPABILITIES = (
    "CAP_AUDIT_CONTROL",
    "CAP_AUDIT_READ",
    "CAP_BLOCK_SUSPEND",
    "CAP_LINUX_IMMUTABLE",
    "CAP_MAC_ADMIN",
    "CAP_MAC_OVERRIDE",
    "CAP_NET_BROADCAST",
    "CAP_SYS_BOOT",
    "CAP_SYS_PACCT",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_WAKE_ALARM",
)
_REMOVED_CALLS = ("@clock", "@cpu-emulation", "@obsolete", "@reboot", "@swap")
_TEMPLATE = """\
# Written by `calabash service install`; `calabash service uninstall` removes it.
[Unit]
Description=Calabash, the GPU pool of this machine
Documentation=man:calabash(1)
After=network.target nvidia-persistenced.service
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
Restart=on-failure
RestartSec=2
# The start reports that it is complete; it migrates the database and examines all cards first.
TimeoutStartSec=300
TimeoutStopSec=60
# Programs on slices, and the recorder of their ends, continue while the pool is restarted.
KillMode=process
Delegate=yes
UMask=0022
LimitNOFILE=1048576
TasksMax=infinity
StandardOutput=journal
StandardError=journal
SyslogIdentifier=calabash

CapabilityBoundingSet=~{capabilities}
SystemCallFilter=~{calls}
SystemCallErrorNumber=EPERM
RestrictRealtime=yes
KeyringMode=private
ProtectHostname=yes

[Install]
WantedBy=multi-user.target
"""


def unit_text(command: Sequence[str]) -> str:
    """Return the unit.

    Args:
        command: words of the command that runs the pool in the foreground; the first is an absolute path.
    """
    return _TEMPLATE.format(
        command=" ".join(_escaped(word) for word in command),
        capabilities=" ".join(_REMOVED_CAPABILITIES),
        calls=" ".join(_REMOVED_CALLS),
    )


def _escaped(word: str) -> str:
    """Return a word of a command line as systemd reads it: ``%`` and ``$`` begin replacements there."""
    return shlex.quote(word.replace("%", "%%").replace("$", "$$").replace("\\", "\\\\"))
