"""``calabash net``: the network under tenants' VPCs. Each command's module is imported only when that command runs."""

from __future__ import annotations

import importlib

import click

# name -> (module:attribute, one-line help). The help stands here so that listing imports nothing.
_COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("netlab:up", "Bring up a network of namespaces on this machine."),
    "down": ("netlab:down", "Take that network away."),
    "status": ("netlab:status", "Show the networks of this machine and their daemons."),
    "doctor": ("netdoctor:doctor", "Look at everything that networks need and name what is wrong."),
    "check": ("netcheck:check", "Try every promise of a VPC with packets."),
    "ctl": ("netlab:ctl", "Run a program of OVN or Open vSwitch on that network."),
    "apply": ("netfiles:apply", "Make network objects what files say."),
    "diff": ("netfiles:diff", "Show what applying files would change."),
    "render": ("netrender:render", "Print the networks as objects of Kube-OVN."),
    "fabric": ("netfabric:fabric", "Keep tenants apart on fabrics for RDMA."),
}


class NetGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(f"calabash.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=NetGroup)
def net() -> None:
    """Bring up and check the network under tenants' VPCs, and apply files of objects."""
