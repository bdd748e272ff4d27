"""``calabash serve exporter`` and ``dashboards``: metrics for Prometheus, dashboards for Grafana, and alert rules."""

from __future__ import annotations

from pathlib import Path

import click

from calabash.cli.home import client
from calabash.model.errors import CalabashError, Reason, cause, file_reason

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    import ssl

_TOKEN_BYTES_MIN, _TOKEN_BYTES_MAX = 16, 4096


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:9435",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; :PORT listens on all addresses.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the token that clients must present (Prometheus: authorization.credentials_file).",
)
@click.option(
    "--open", "open_", is_flag=True, help="Serve every client without a token; metrics name tenants and users."
)
@click.option(
    "--compatible",
    type=click.Choice(["dcgm", "hami"]),
    multiple=True,
    help="Serve metrics also under the names of this exporter.",
)
@click.option("--certificate", type=click.Path(path_type=Path, dir_okay=False), help="Serve TLS with this certificate.")
@click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Private key, PEM, without password.",
)
def exporter(
    *,
    listen: str,
    token_file: Path | None,
    open_: bool,
    compatible: tuple[str, ...],
    certificate: Path | None,
    key: Path | None,
) -> None:
    """Serve the pool's metrics to Prometheus, at /metrics."""
    from calabash.broker.addresses import parse_address  # noqa: PLC0415
    from calabash.exporter.page import MetricsPage  # noqa: PLC0415
    from calabash.exporter.reading import Reader  # noqa: PLC0415
    from calabash.exporter.serving import Listening, serve_until_told  # noqa: PLC0415
    from calabash.platform.home.logs import configure  # noqa: PLC0415

    if token_file is None and not open_:
        raise CalabashError(
            "neither --token-file nor --open is given, and metrics name tenants and users",
            reason=Reason.BAD_REQUEST,
            hint="give --token-file FILE to require a token, or --open to serve every client that reaches the port",
        )
    everywhere = "0.0.0.0"  # noqa: S104 - asked for as :PORT
    address = parse_address(f"{everywhere}{listen}" if listen.startswith(":") else listen)
    listening = Listening(
        host=address.host,
        port=address.port,
        token=_token(token_file) if token_file else "",
        tls=_tls(certificate, key),
    )
    configure()
    page = MetricsPage(Reader(client()), compatible=compatible)
    scheme = "https" if listening.tls else "http"
    serve_until_told(page, listening, ready=lambda where: click.echo(f"metrics: {scheme}://{where}/metrics"))


@click.group()
def dashboards() -> None:
    """Write dashboards for Grafana and alert rules for Prometheus that use the exporter's metrics."""


@dashboards.command("export")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def export(directory: Path) -> None:
    """Write a JSON file for each dashboard, alerts.yaml and, for clusters, cluster-alerts.yaml into DIRECTORY."""
    import json  # noqa: PLC0415

    import yaml  # noqa: PLC0415

    from calabash.exporter.alerts import rules  # noqa: PLC0415
    from calabash.exporter.cluster_alerts import cluster_rules  # noqa: PLC0415
    from calabash.exporter.cluster_panels import CLUSTER  # noqa: PLC0415
    from calabash.exporter.grafana import grafana  # noqa: PLC0415
    from calabash.exporter.panels import BOARDS  # noqa: PLC0415

    files = {f"{board.name}.json": json.dumps(grafana(board), indent=2) + "\n" for board in (*BOARDS, CLUSTER)}
    files["alerts.yaml"] = yaml.safe_dump(rules(), sort_keys=False, width=120)
    files["cluster-alerts.yaml"] = yaml.safe_dump(cluster_rules(), sort_keys=False, width=120)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text)
            click.echo(directory / name)
    except OSError as error:
        raise CalabashError(
            f"{directory} cannot be written: {error.strerror or error}",
            reason=file_reason(error),
            hint="choose another directory",
        ) from None


def _token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            found = file.read(_TOKEN_BYTES_MAX + 1).strip()
    except OSError as error:
        raise CalabashError(f"{path} cannot be read: {error.strerror or error}", reason=file_reason(error)) from None
    if not _TOKEN_BYTES_MIN <= len(found) <= _TOKEN_BYTES_MAX or not found.isascii() or b" " in found:
        raise CalabashError(
            f"{path} has no token, which is one line of {_TOKEN_BYTES_MIN} to {_TOKEN_BYTES_MAX} letters and digits",
            reason=Reason.BAD_FILE,
            hint=f"create one: (umask 077; openssl rand -hex 32 > {path})",
        )
    return found.decode()


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    import ssl  # noqa: PLC0415

    if certificate is None:
        if key is not None:
            raise CalabashError("--key is given without --certificate", reason=Reason.BAD_REQUEST, hint="give both")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise CalabashError(
            f"{certificate} cannot be served: {cause(error)}",
            reason=Reason.BAD_FILE,
            hint="--certificate and --key are files in PEM format",
        ) from None
    return context
