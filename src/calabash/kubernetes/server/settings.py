"""Settings of the server of a cluster: command line, and sections of a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from calabash.api.gateway import ConsoleSettings
from calabash.model.errors import CalabashError, Reason
from calabash.platform.home.limits import Kept, Limits
from calabash.platform.notifications.settings import NotificationSettings


class ClusterSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings file: sections ``[user]``, ``[journal]``, ``[console]`` and ``[notifications]`` of ``pool.toml``."""

    user: Limits = Limits()
    journal: Kept = Kept()
    console: ConsoleSettings = ConsoleSettings()
    notifications: NotificationSettings = NotificationSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOrder:
    """Command line of the server.

    Args:
        database: URL of the database.
        identity: unique name among replicas; "" for a generated one.
        usage_port: port to which nodes send usage; 0: none.
        metrics_port: port of the metrics; 0: any free port, None: no metrics.
    """

    home: Path
    namespace: str
    database: str
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    identity: str = ""
    usage_port: int = 0
    metrics_port: int | None = None


def read_cluster_settings(path: Path | None) -> ClusterSettings:
    """Return the settings of a file. Raises CalabashError(BAD_FILE) that names the line or the field."""
    if path is None:
        return ClusterSettings()
    try:
        return msgspec.toml.decode(path.read_bytes(), type=ClusterSettings)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise CalabashError(
            f"{path} is not understood: {error}",
            reason=Reason.BAD_FILE,
            hint=f"sections {', '.join(f'[{name}]' for name in ClusterSettings.__struct_fields__)}",
        ) from None


def console_with(
    settings: ClusterSettings, *, listen: str, hosts: tuple[str, ...], certificate_dir: Path | None, insecure: bool
) -> ClusterSettings:
    """Return the settings with the options of the command line, which have precedence."""
    console = settings.console
    if listen:
        console = msgspec.structs.replace(console, listen=listen)
    if certificate_dir is not None:
        pair = {"certificate": str(certificate_dir / "tls.crt"), "key": str(certificate_dir / "tls.key")}
        console = msgspec.structs.replace(console, **pair)
    console = msgspec.structs.replace(console, hosts=[*console.hosts, *hosts], insecure=console.insecure or insecure)
    return msgspec.structs.replace(settings, console=console)
