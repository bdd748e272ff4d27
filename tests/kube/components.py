"""Command lines and settings of the components of a control plane.

All components listen on the loopback interface of a private network. The API server signs its own certificate at its
first start, and all kubeconfigs trust that certificate. Users authenticate by tokens, which are created for each
cluster.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ETCD = "etcd"
APISERVER = "apiserver"
CONTROLLERS = "controller-manager"
SCHEDULER = "scheduler"
_ETCD_CLIENTS = "http://127.0.0.1:2379"
_ETCD_PEERS = "http://127.0.0.1:2380"
NODES = ("node1", "node2", "node3")
SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"  # first address of the range: the API server's, for pods


@dataclass(frozen=True, slots=True)
class Component:
    """A program of the cluster, with everything that is needed to start it again."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    beside: str | None = None  # a program whose mount namespace it shares
    lasting: bool = True  # if it ends unexpectedly, every wait of the cluster fails


class Secrets:
    """Tokens, keys and kubeconfigs of the users of a cluster, in the cluster's directory.

    Args:
        root: directory of the cluster.
        port: port of the API server.
    """

    def __init__(self, root: Path, port: int) -> None:
        self.directory = root / "pki"
        self.directory.mkdir(mode=0o700)
        self.server = f"https://127.0.0.1:{port}"
        self.authority = self.directory / "apiserver.crt"
        self.service_accounts = self.directory / "service-accounts.key"
        self.users_file = self.directory / "users.csv"
        self._tokens: dict[str, str] = {}
        curve = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout"]  # the form SEC1; PKCS 8 is refused
        subprocess.run([*curve, "-out", str(self.service_accounts)], check=True, capture_output=True, timeout=60)

    def add_user(self, name: str, *groups: str) -> str:
        """Add a user with these groups, whom the API server accepts after its next start; return the user's token."""
        token = self._tokens[name] = secrets.token_hex(16)
        listed = ",".join(groups)
        with self.users_file.open("a") as users:
            users.write(f'{token},{name},{name},"{listed}"\n')
        return token

    def token(self, user: str) -> str:
        return self._tokens[user]

    def certificate(self, name: str) -> tuple[Path, Path]:
        """Return a self-signed certificate for 127.0.0.1 and its key, for webhooks that a test serves."""
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        said = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
        files = ["-keyout", str(key), "-out", str(certificate)]
        subprocess.run([*made, *said, *files], check=True, capture_output=True, timeout=60)
        return certificate, key

    def kubeconfig(self, user: str) -> Path:
        """Write a kubeconfig for a user that is valid outside and inside the namespaces; return its path."""
        path = self.directory / f"{user.replace(':', '-')}.kubeconfig"
        cluster = {"server": self.server, "certificate-authority": str(self.authority)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
            "current-context": "tests",
        }
        path.write_text(json.dumps(content, indent=1))
        return path


def etcd(programs: Path, root: Path) -> Component:
    flags = {
        "data-dir": root / "etcd",
        "listen-client-urls": _ETCD_CLIENTS,
        "advertise-client-urls": _ETCD_CLIENTS,
        "listen-peer-urls": _ETCD_PEERS,
        "initial-advertise-peer-urls": _ETCD_PEERS,
        "initial-cluster": f"default={_ETCD_PEERS}",
        "log-level": "warn",
    }
    return Component(ETCD, (str(programs / "etcd"), "--unsafe-no-fsync", *_flags(flags)))


def apiserver(programs: Path, keys: Secrets, port: int, more: Sequence[str]) -> Component:
    flags = {
        "etcd-servers": _ETCD_CLIENTS,
        "secure-port": port,
        "bind-address": "127.0.0.1",
        "advertise-address": "127.0.0.1",
        "cert-dir": keys.directory,
        "token-auth-file": keys.users_file,
        "authorization-mode": "Node,RBAC",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": keys.service_accounts,
        "service-account-signing-key-file": keys.service_accounts,
        "service-cluster-ip-range": SERVICE_RANGE,
        "allow-privileged": "true",
        "endpoint-reconciler-type": "none",
        "kubelet-preferred-address-types": "InternalIP",
        "enable-priority-and-fairness": "false",
    }
    return Component(APISERVER, (str(programs / "kube-apiserver"), *_flags(flags), *more))


def controllers(programs: Path, keys: Secrets, *, lifecycle: bool, more: Sequence[str]) -> Component:
    """Return the controller manager. Without ``lifecycle``, nodes stay ready although no kubelet renews their leases."""
    flags = {
        "kubeconfig": keys.kubeconfig("controllers"),
        "leader-elect": "false",
        "service-account-private-key-file": keys.service_accounts,
        "root-ca-file": keys.authority,
        "bind-address": "127.0.0.1",
        "kube-api-qps": 500,
        "kube-api-burst": 500,
        "controllers": "*" if lifecycle else "*,-node-lifecycle-controller,-taint-eviction-controller",
    }
    return Component(CONTROLLERS, (str(programs / "kube-controller-manager"), *_flags(flags), *more))


def scheduler(programs: Path, keys: Secrets, name: str, config: Mapping[str, Any], port: int) -> Component:
    """Return a kube-scheduler with this KubeSchedulerConfiguration, to which the common settings are added."""
    whole = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        **config,
        "clientConnection": {
            "qps": 1000,
            "burst": 1000,
            **config.get("clientConnection", {}),
            "kubeconfig": str(keys.kubeconfig("scheduler")),
        },
    }
    path = keys.directory / f"{name}.json"
    path.write_text(json.dumps(whole, indent=1))
    flags = {"config": path, "bind-address": "127.0.0.1", "secure-port": port}
    return Component(name, (str(programs / "kube-scheduler"), *_flags(flags)))


def _flags(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]
