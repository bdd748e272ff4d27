"""Options and addresses of gRPC channels over Unix sockets to the kubelet."""

from __future__ import annotations

from pathlib import Path

# Reconnects to a restarted kubelet within a second; the kubelet accepts only a plain authority.
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
    """Return the options of every channel."""
    return (*_OPTIONS, ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX))


def address(socket: Path) -> str:
    """Return the gRPC address of a socket. Raises ValueError if its path is longer than SOCKET_PATH_MAX bytes."""
    if len(str(socket).encode()) > SOCKET_PATH_MAX:
        raise ValueError(f"{socket}: a socket's path has at most {SOCKET_PATH_MAX} bytes")
    return f"unix:{socket}"
