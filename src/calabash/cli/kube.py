"""Parts of the product that run in a cluster, as programs: the agent of a node, admission, and metrics for autoscalers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from calabash.model.errors import CalabashError, Reason

if TYPE_CHECKING:
    from calabash.kubernetes.admission.settings import AdmissionSettings


class AgentCommand(click.Command):
    """Its words are the agent's own."""

    def get_help(self, ctx: click.Context) -> str:
        from calabash.kubernetes.node.daemon import parser  # noqa: PLC0415

        return parser().format_help().rstrip()


@click.command(cls=AgentCommand, add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def agent(words: tuple[str, ...]) -> None:
    """Serve the devices of one node of a cluster to the containers of its pods."""
    from calabash.kubernetes.node.daemon import main  # noqa: PLC0415

    sys.exit(main(words))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--kubeconfig", default="", metavar="FILE", help="File that says where the API server is; in a pod not needed."
)
@click.option(
    "--settings",
    "settings_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Settings in YAML; every one has a default.",
)
def admission(kubeconfig: str, settings_file: Path | None) -> None:
    """Answer a cluster's questions about pods that ask for devices.

    Serves HTTPS with certificates of its own, which it keeps in a Secret and in the webhook configurations.
    """
    from calabash.kubernetes.admission.run import run_admission  # noqa: PLC0415
    from calabash.seams.kube import load_client  # noqa: PLC0415

    run_admission(load_client(kubeconfig, agent="calabash-admission"), read_settings(settings_file))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--kubeconfig", default="", metavar="FILE", help="File that says where the API server is; in a pod not needed."
)
@click.option("--namespace", default="calabash-system", show_default=True, help="Namespace of its Service and Secret.")
@click.option("--host", default="", metavar="ADDRESS", help="Where to listen. Default: everywhere.")
@click.option("--port", default=8444, show_default=True, type=click.IntRange(0, 65535))
def metrics(kubeconfig: str, namespace: str, host: str, port: int) -> None:
    """Tell a cluster's autoscalers how busy slices are and what waits in queues.

    Serves external.metrics.k8s.io to API servers, by their certificates, with certificates of its own.
    """
    from calabash.kubernetes.metrics.run import run_metrics  # noqa: PLC0415
    from calabash.seams.kube import load_client  # noqa: PLC0415

    run_metrics(load_client(kubeconfig, agent="calabash-metrics"), namespace=namespace, host=host, port=port)


def read_settings(path: Path | None) -> AdmissionSettings:
    """The settings of a file. Raises CalabashError(BAD_FILE) that names the field."""
    import msgspec  # noqa: PLC0415
    import yaml  # noqa: PLC0415

    from calabash.kubernetes.admission.settings import AdmissionSettings  # noqa: PLC0415

    if path is None:
        return AdmissionSettings()
    try:
        return msgspec.convert(yaml.safe_load(path.read_text()) or {}, type=AdmissionSettings)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CalabashError(
            f"{path} is not understood: {error}", reason=Reason.BAD_FILE, hint="see the settings of admission"
        ) from error
