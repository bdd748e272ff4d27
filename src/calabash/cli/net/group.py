"""``calabash net``: group of the network commands; each command's module is imported only when it runs."""

from __future__ import annotations

import click

from calabash.cli.lazy import LazyGroup

# name -> (module:attribute, one-line help). The help stands here so that listing imports nothing.
_COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("net.lab:up", "Bring up a network of namespaces on this machine."),
    "down": ("net.lab:down", "Take that network away."),
    "status": ("net.lab:status", "Show the networks of this machine and their daemons."),
    "doctor": ("net.doctor:doctor", "Look at everything that networks need and name what is wrong."),
    "check": ("net.check:check", "Try every promise of a VPC with packets."),
    "ctl": ("net.lab:ctl", "Run a program of OVN or Open vSwitch on that network."),
    "apply": ("net.files:apply", "Make network objects what files say."),
    "diff": ("net.files:diff", "Show what applying files would change."),
    "render": ("net.render:render", "Print the networks as objects of Kube-OVN."),
    "fabric": ("net.fabric:fabric", "Keep tenants apart on fabrics for RDMA."),
}


@click.group(cls=LazyGroup, lazily=_COMMANDS)
def net() -> None:
    """Start and check the network of tenants' VPCs, and apply manifests."""
