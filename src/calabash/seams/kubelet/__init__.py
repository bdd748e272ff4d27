"""The kubelet of a node: the device plug-in it calls, who owns which token (pod-resources), and its checkpoint.

What lives here: gRPC over Unix sockets with stubs generated from ``proto/`` (this is their only importer), registration in
both ways, and the strict reader of the kubelet's own file. What never lives here: what a token means.
"""

from calabash.seams.kubelet.checkpoint import Checkpoint
from calabash.seams.kubelet.podresources import PodResources
from calabash.seams.kubelet.protocol import Allocated, CheckpointEntry, PluginDevice, PluginHandler, TokenOwner
from calabash.seams.kubelet.server import DevicePluginServer

__all__ = [
    "Allocated",
    "Checkpoint",
    "CheckpointEntry",
    "DevicePluginServer",
    "PluginDevice",
    "PluginHandler",
    "PodResources",
    "TokenOwner",
]
