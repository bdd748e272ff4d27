"""Turn off offloads of a network interface.

With offloads, a switch in user space would see packets without checksums and drop all but those of ``ping``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct

_SIOCETHTOOL = 0x8946
_TX_CHECKSUMS, _TSO, _GSO, _GRO = 0x17, 0x1F, 0x24, 0x2C  # ETHTOOL_S*
_GET_TX_CHECKSUMS = 0x16


def switch_off(interface: str) -> None:
    """Turn off transmit checksums and segmentation offloads of an interface in this thread's namespace. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asked:
        for command in (_TX_CHECKSUMS, _TSO, _GSO, _GRO):
            try:
                _ask(asked, interface, command, 0)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise


def checksums_left_out(interface: str) -> bool:
    """Return True if the interface sends packets without checksums."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asked:
        return bool(_ask(asked, interface, _GET_TX_CHECKSUMS, 0))


def _ask(asked: socket.socket, interface: str, command: int, value: int) -> int:
    words = ctypes.create_string_buffer(struct.pack("II", command, value), 8)
    fcntl.ioctl(asked, _SIOCETHTOOL, struct.pack("16sP", interface.encode(), ctypes.addressof(words)))
    return int(struct.unpack("II", words.raw)[1])
