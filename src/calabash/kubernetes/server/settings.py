"""Settings of the server of a cluster: the options of the command line and the settings file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from calabash.api.gateway import ConsoleSettings
from calabash.model.errors import CalabashError, Reason
from calabash.platform.home.limits import Limits, RetentionSettings
from calabash.platform.notifications.settings import NotificationSettings


class ClusterSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Settings file of the server.

    Its sections ``[user]``, ``[journal]``, ``[console]`` and ``[notifications]`` mean the same as in ``pool.toml``, the
    settings file of a single machine.
    """

    user: Limits = Limits()
    journal: RetentionSettings = RetentionSettings()
    console: ConsoleSettings = ConsoleSettings()
    notifications: NotificationSettings = NotificationSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOrder:
    """Options of the server's command line.

    Args:
        home: directory of the server's sockets, lock and log.
        namespace: namespace of the product; the Lease object is in it.
        database: URL of the database.
        settings: contents of the settings file, with the options that override it.
        identity: name of this replica in the Lease object, unique among replicas; "" to generate one.
        usage_port: port on which the server receives usage records from nodes; 0 to receive none.
        metrics_port: port of the Prometheus metrics; 0 for any free port, None to serve no metrics.
    """

    home: Path
    namespace: str
    database: str
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    identity: str = ""
    usage_port: int = 0
    metrics_port: int | None = None


def read_cluster_settings(path: Path | None) -> ClusterSettings:
    """Read the settings file; return the default settings if ``path`` is None.

    Raises:
        CalabashError: BAD_FILE if the file is invalid; the message names the line or the field.
    """
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
    """Return the settings with the console's options of the command line, which have precedence over the file.

    Args:
        listen: address of the console; "" to keep that of the file.
        hosts: host names of the console, in addition to those of the file.
        certificate_dir: directory with ``tls.crt`` and ``tls.key``; None to keep the certificate of the file.
        insecure: True to serve the console without TLS; False to keep the choice of the file.
    """
    console = settings.console
    if listen:
        console = msgspec.structs.replace(console, listen=listen)
    if certificate_dir is not None:
        pair = {"certificate": str(certificate_dir / "tls.crt"), "key": str(certificate_dir / "tls.key")}
        console = msgspec.structs.replace(console, **pair)
    console = msgspec.structs.replace(console, hosts=[*console.hosts, *hosts], insecure=console.insecure or insecure)
    return msgspec.structs.replace(settings, console=console)
