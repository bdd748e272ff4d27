"""Daemons of a cluster: node agent, plug-in relay, admission, metrics and server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from calabash.model.errors import CalabashError, Reason, cause, file_reason
from calabash.model.extras import require

if TYPE_CHECKING:
    from calabash.kubernetes.admission.settings import AdmissionSettings


class AgentCommand(click.Command):
    """Command that prints the help of the agent's own parser, which parses its arguments."""

    def get_help(self, ctx: click.Context) -> str:
        from calabash.kubernetes.node_plugin.daemon import parser  # noqa: PLC0415

        return parser().format_help().rstrip()


@click.command(cls=AgentCommand, add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def agent(words: tuple[str, ...]) -> None:
    """Run the agent of one node of a cluster, which serves its devices to containers."""
    require("kubernetes")
    from calabash.kubernetes.node_plugin.daemon import main  # noqa: PLC0415

    sys.exit(main(words))


class RelayCommand(click.Command):
    """Command that prints the help of the relay's own parser, which parses its arguments."""

    def get_help(self, ctx: click.Context) -> str:
        from calabash.kubernetes.node_plugin.devices.relay import parser  # noqa: PLC0415

        return parser().format_help().rstrip()


@click.command(cls=RelayCommand, add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def plugin_relay(words: tuple[str, ...]) -> None:
    """Keep a node's devices registered at the kubelet while the agent of the node restarts."""
    require("kubernetes")
    from calabash.kubernetes.node_plugin.devices.relay import main  # noqa: PLC0415

    sys.exit(main(words))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--kubeconfig", default="", metavar="FILE", help="Kubeconfig file. Default: the service account of the pod."
)
@click.option(
    "--settings",
    "settings_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Settings in YAML. Default: the default of each setting.",
)
def admission(kubeconfig: str, settings_file: Path | None) -> None:
    """Serve the admission webhooks for pods that request devices.

    Serves HTTPS with certificates that it creates, and stores in a Secret and in the webhook configurations.
    """
    require("kubernetes")
    from calabash.adapters.kube import load_client  # noqa: PLC0415
    from calabash.kubernetes.admission.run import run_admission  # noqa: PLC0415

    run_admission(load_client(kubeconfig, agent="calabash-admission"), read_settings(settings_file))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--kubeconfig", default="", metavar="FILE", help="Kubeconfig file. Default: the service account of the pod."
)
@click.option(
    "--namespace",
    default="calabash-system",
    show_default=True,
    metavar="NAME",
    help="Namespace of the Service and the Secret.",
)
@click.option(
    "--listen-address", "host", default="", metavar="ADDRESS", help="Address to listen on. Default: all addresses."
)
@click.option(
    "--listen-port", "port", default=8444, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on."
)
@click.option(
    "--probe-port",
    default=8081,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port for probes of the kubelet, over plain HTTP.",
)
def metrics(kubeconfig: str, namespace: str, host: str, port: int, probe_port: int) -> None:
    """Serve the use of slices and the pending requests of queues to a cluster's autoscalers.

    Serves the API external.metrics.k8s.io to API servers, which it authenticates by their certificates, with certificates
    that it creates.
    """
    require("kubernetes")
    from calabash.adapters.kube import load_client  # noqa: PLC0415
    from calabash.kubernetes.metrics.run import run_metrics  # noqa: PLC0415

    client = load_client(kubeconfig, agent="calabash-metrics")
    run_metrics(client, namespace=namespace, host=host, port=port, probe_port=probe_port)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--kubeconfig", default="", metavar="FILE", help="Kubeconfig file. Default: the service account of the pod."
)
@click.option(
    "--namespace",
    default="calabash-system",
    show_default=True,
    metavar="NAME",
    help="Namespace of the Lease by which replicas elect a leader.",
)
@click.option(
    "--home",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Home directory, with sockets, the key of the audit log, and the default database.",
)
@click.option(
    "--db-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File with the URL of the database. Default: SQLite in the home directory.",
)
@click.option(
    "--settings",
    "settings_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Settings in TOML: sections [console], [user], [journal] and [notifications] of pool.toml.",
)
@click.option("--console", default="", metavar="HOST:PORT", help="TCP address of the console and the API, or off.")
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="Host name that browsers may use; repeat for several."
)
@click.option(
    "--certificate-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory with tls.crt and tls.key, such as a mounted Secret.",
)
@click.option(
    "--insecure", is_flag=True, help="Allow an address that other machines can reach to be served without TLS."
)
@click.option(
    "--usage-port",
    default=0,
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port to which node agents send usage records. Default: none.",
)
@click.option(
    "--metrics-port",
    default=0,
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port that serves metrics to Prometheus, without authentication. Default: none.",
)
@click.option("--identity", default="", metavar="NAME", help="Name of this replica; unique, random by default.")
def cluster(
    *,
    kubeconfig: str,
    namespace: str,
    home: Path,
    db_file: Path | None,
    settings_file: Path | None,
    console: str,
    hosts: tuple[str, ...],
    certificate_dir: Path | None,
    insecure: bool,
    usage_port: int,
    metrics_port: int,
    identity: str,
) -> None:
    """Serve the API and the console of a cluster.

    Several replicas may run; one of them, the leader, serves. Tenants and queues are objects of the API server; users,
    tokens, usage and invoices are stored in a database.
    """
    require("kubernetes")
    from calabash.adapters.kube import load_client  # noqa: PLC0415
    from calabash.kubernetes.server.run import run_cluster  # noqa: PLC0415
    from calabash.kubernetes.server.settings import ClusterOrder, console_with, read_cluster_settings  # noqa: PLC0415
    from calabash.platform.home.directory import DATABASE_FILE  # noqa: PLC0415
    from calabash.platform.home.logs import configure  # noqa: PLC0415

    configure()
    home = home.absolute()
    settings = console_with(
        read_cluster_settings(settings_file),
        listen=console,
        hosts=hosts,
        certificate_dir=certificate_dir,
        insecure=insecure,
    )
    order = ClusterOrder(
        home=home,
        namespace=namespace,
        database=_url_in(db_file) if db_file is not None else f"sqlite:///{home / DATABASE_FILE}",
        settings=settings,
        identity=identity,
        usage_port=usage_port,
        metrics_port=metrics_port or None,
    )
    run_cluster(load_client(kubeconfig, agent="calabash-server"), order)


def _url_in(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        raise CalabashError(
            f"{path} cannot be read: {cause(error)}",
            reason=file_reason(error),
            hint="--db-file names a file with the URL of the database",
        ) from error


def read_settings(path: Path | None) -> AdmissionSettings:
    """Read the settings of the admission webhook; return the defaults if ``path`` is None.

    Raises CalabashError(BAD_FILE) that names the field.
    """
    import msgspec  # noqa: PLC0415
    import yaml  # noqa: PLC0415

    from calabash.kubernetes.admission.settings import AdmissionSettings  # noqa: PLC0415

    if path is None:
        return AdmissionSettings()
    try:
        settings = msgspec.convert(yaml.safe_load(path.read_text()) or {}, type=AdmissionSettings)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CalabashError(
            f"{path} is not valid: {error}",
            reason=Reason.BAD_FILE,
            hint="see `policies` in docs/reference/helm-values.md",
        ) from error
    _ = settings.gang_table  # invalid entries are reported before the server starts
    return settings
