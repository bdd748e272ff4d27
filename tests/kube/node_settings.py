"""Settings of a real node's containerd, network and kubelet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kube.images import PAUSE

_CONTAINERD = """\
version = 3
root = '{home}/containerd'
state = '{home}/containerd-state'
disabled_plugins = ['io.containerd.nri.v1.nri']

[grpc]
  address = '{socket}'

[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{pause}'

[plugins.'io.containerd.cri.v1.runtime']
  # Without CAP_SYS_RESOURCE nobody may ask for less than their own score.
  restrict_oom_score_adj = true
  enable_unprivileged_ports = false
  enable_unprivileged_icmp = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/usr/lib/cni']
    conf_dir = '{home}/cni'
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = '{runc}'
        SystemdCgroup = false
"""


def containerd(home: Path, socket: Path, runc: Path) -> str:
    return _CONTAINERD.format(home=home, socket=socket, pause=PAUSE, runc=runc)


def network(home: Path, subnet: str) -> str:
    """Return a CNI configuration in which each pod has a veth pair with an address of the node's subnet.

    Pods of all nodes can reach each other.
    """
    addresses = {"type": "host-local", "dataDir": str(home / "addresses"), "ranges": [[{"subnet": subnet}]]}
    plugins = [{"type": "ptp", "ipam": {**addresses, "routes": [{"dst": "0.0.0.0/0"}]}}]
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}, indent=1)


def kubelet(address: str, socket: Path, group: str, more: Mapping[str, Any]) -> str:
    """Return a KubeletConfiguration.

    Args:
        address: address on which the kubelet listens.
        socket: socket of containerd.
        group: control group of the node.
        more: fields that are added or replaced.
    """
    settings = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": 10250,
        "healthzBindAddress": address,
        "readOnlyPort": 0,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": group,
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        "resolvConf": "",
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "serializeImagePulls": False,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi"},
        "evictionPressureTransitionPeriod": "5s",
        "nodeStatusUpdateFrequency": "2s",
        "syncFrequency": "10s",
        "kubeAPIQPS": 500,
        "kubeAPIBurst": 500,
        "eventRecordQPS": 0,
        **more,
    }
    return json.dumps(settings, indent=1)
