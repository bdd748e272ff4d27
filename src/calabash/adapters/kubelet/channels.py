"""gRPC over Unix sockets: channels to the kubelet, and method tables of services."""

from __future__ import annotations

from pathlib import Path

# A kubelet that restarts is met again within a second; it takes no authority but a plain one.
_OPTIONS: tuple[tuple[str, str | int], ...] = (
    ("grpc.default_authority", "localhost"),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
MESSAGE_BYTES_MAX = 32 << 20
SOCKET_PATH_MAX = 107


def channel_options() -> tuple[tuple[str, str | int], ...]:
    """What every channel is made with."""
    return (*_OPTIONS, ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX))


def address(socket: Path) -> str:
    """A socket's address. Raises ValueError for a path that the kernel cannot take."""
    if len(str(socket).encode()) > SOCKET_PATH_MAX:
        raise ValueError(f"{socket}: a socket's path has at most {SOCKET_PATH_MAX} bytes")
    return f"unix:{socket}"
