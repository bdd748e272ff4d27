"""The systemd unit of the system pool.

The pool starts jobs as their users, moves programs into control groups, creates network namespaces and opens devices, so that
the unit confines it only where users' programs are not affected: jobs inherit its system call filter and its bounding set, but
no user has the capabilities and system calls that are removed. There is no mount namespace of its own: network namespaces must
be visible on the whole machine, and jobs use the files of their users.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

UNIT = "calabash.service"
# Capabilities that neither the pool nor a process that it starts for root needs.
_REMOVED_CAPABILITIES = (
    "CAP_AUDIT_CONTROL",
    "CAP_AUDIT_READ",
    "CAP_BLOCK_SUSPEND",
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
_UNPRINTABLE = r"\x00-\x1f\x7f\udc80-\udcff"  # the last are bytes that are not UTF-8
_UNUSABLE_IN_PATH = re.compile(rf"['\"\\{_UNPRINTABLE}]")
_ESCAPED = re.compile(rf"[\"\\{_UNPRINTABLE}]")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+:=,./-]+")
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
        command=command_line(command),
        capabilities=" ".join(_REMOVED_CAPABILITIES),
        calls=" ".join(_REMOVED_CALLS),
    )


def command_line(command: Sequence[str]) -> str:
    """Return words as the value of ``ExecStart``, by the rules of systemd.syntax and systemd.service.

    The value begins with ``:`` if a word contains ``$``, so that systemd replaces no variables. systemd refuses programs whose
    path has a quotation mark, a backslash, or a character that cannot be printed; a shell becomes such a program instead.
    """
    words = (
        [*command] if _UNUSABLE_IN_PATH.search(command[0]) is None else ["/bin/sh", "-c", 'exec "$0" "$@"', *command]
    )
    if any("$" in word for word in words):
        words[0] = f":{words[0]}"
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """Return a word as systemd.syntax writes it; ``%`` is doubled, because it begins a specifier."""
    text = _ESCAPED.sub(_escape, word.replace("%", "%%"))
    return text if _PLAIN.fullmatch(text) else f'"{text}"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return f"\\{character}" if character in '"\\' else f"\\x{ord(character) & 0xFF:02x}"
