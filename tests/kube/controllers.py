"""Workload controllers of other projects on a test cluster: definitions, webhooks and programs, all unmodified.

    with Controllers(cluster, "jobset", "lws"):   # about four seconds
        cluster.api.create("/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets", body)

Definitions and webhook configurations are those of the projects' manifests. Only the address of the webhooks differs: a
port of the loopback interface instead of a Service, with a certificate that the test makes.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.kube import controller_programs
from tests.kube.cluster import Cluster
from tests.kube.programs import MissingError

_PORT = 19440  # of the first controller's webhooks; its probes are one higher
_CERTIFICATES = "k8s-webhook-server/serving-certs"  # in /tmp, where controller-runtime searches them


@dataclass(frozen=True, slots=True)
class Controller:
    """Arguments, settings and certificates with which a controller is started.

    Args:
        words: its arguments, from the ports of its webhooks and of its probes.
        settings: content of its settings file, from the port of its webhooks; None if it has no such file.
        secret: namespace and name of the Secret in which it expects its certificates; None if it needs no Secret.
    """

    words: Callable[[int, int], list[str]]
    settings: Callable[[int], Mapping[str, Any]] | None = None
    secret: tuple[str, str] | None = None


def _probes(port: int) -> list[str]:
    return ["--metrics-bind-address=0", f"--health-probe-bind-address=127.0.0.1:{port}"]


def _settings(group: str) -> Callable[[int], Mapping[str, Any]]:
    return lambda port: {
        "apiVersion": f"{group}/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": port},
    }


CONTROLLERS = {
    "jobset": Controller(lambda _, probes: _probes(probes), _settings("config.jobset.x-k8s.io")),
    "lws": Controller(lambda _, probes: _probes(probes), _settings("config.lws.x-k8s.io")),
    "trainer": Controller(
        lambda port, probes: [*_probes(probes), f"--webhook-server-port={port}"],
        secret=("kubeflow-system", "kubeflow-trainer-webhook-cert"),
    ),
    "kuberay": Controller(
        lambda _, probes: [
            "--metrics-addr=0",
            f"--health-probe-bind-address=127.0.0.1:{probes}",
            "--enable-leader-election=false",
        ]
    ),
}
# Names for which the certificates are checked: by the API server, and by controllers that renew invalid ones.
_AUTHORITY = "kubeflow-trainer-ca"
_SERVER = "kubeflow-trainer-controller-manager.kubeflow-system.svc"


class Controllers:
    """Controllers that run in the namespaces of a cluster until the context is left.

    Args:
        cluster: the cluster.
        names: the controllers, as ``CONTROLLERS`` has them.
    """

    def __init__(self, cluster: Cluster, *names: str) -> None:
        self._cluster, self._api = cluster, cluster.api
        self._names = names
        self._programs = controller_programs.found()
        self._ports = {name: _PORT + 2 * number for number, name in enumerate(names)}
        self._directory = cluster.root / "controllers"
        self._secret: dict[str, str] = {}
        self._started: list[str] = []

    def __enter__(self) -> Self:
        self._write_files()
        for name in self._names:
            self._install(name)
        for name in self._names:
            self._start(name)
        for name in self._names:
            self._cluster.wait_for(partial(self._ready, name), f"the controller {name}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._started:
            self._cluster.kill(name)

    def _write_files(self) -> None:
        """Write what the programs find in their ``/tmp``: certificates, kubeconfig and settings."""
        certificates = self._directory / _CERTIFICATES
        certificates.mkdir(parents=True)
        self._secret = certificate_files()
        for file, content in self._secret.items():
            (certificates / file).write_text(content)
        (self._directory / "programs").mkdir()
        kubeconfig = json.loads(self._cluster.kubeconfig.read_text())
        known = kubeconfig["clusters"][0]["cluster"]
        authority = Path(known.pop("certificate-authority")).read_bytes()
        known["certificate-authority-data"] = base64.b64encode(authority).decode()
        (self._directory / "kubeconfig").write_text(json.dumps(kubeconfig))

    def _install(self, name: str) -> None:
        for body in yaml.load_all((self._programs / f"{name}.yaml").read_text(), yaml.CSafeLoader):
            if body["kind"] == "CustomResourceDefinition":
                self._define(body)
                continue
            for webhook in body["webhooks"]:
                path = webhook["clientConfig"].pop("service")["path"]
                webhook["clientConfig"] = {
                    "url": f"https://127.0.0.1:{self._ports[name]}{path}",
                    "caBundle": base64.b64encode(self._secret["ca.crt"].encode()).decode(),
                }
            self._api.create(f"/apis/admissionregistration.k8s.io/v1/{body['kind'].lower()}s", body)
        secret = CONTROLLERS[name].secret
        if secret is not None:
            namespace, called = secret
            self._api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
            made = {"metadata": {"name": called}, "stringData": self._secret}
            self._api.create(f"/api/v1/namespaces/{namespace}/secrets", made)

    def _define(self, body: dict[str, Any]) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        self._api.create(path, body)

        def established() -> bool:
            conditions = self._api.get(f"{path}/{body['metadata']['name']}")["status"].get("conditions") or ()
            return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

        self._cluster.wait_for(established, f"the definition {body['metadata']['name']}")

    def _start(self, name: str) -> None:
        controller, port = CONTROLLERS[name], self._ports[name]
        words = ["--kubeconfig=/tmp/kubeconfig", *controller.words(port, port + 1)]
        if controller.settings is not None:
            (self._directory / f"{name}.yaml").write_text(json.dumps(controller.settings(port)))
            words.append(f"--config=/tmp/{name}.yaml")
        mounts = 'mount --bind "$0" "$1/programs" && mount --rbind "$1" /tmp && shift && exec "$@"'
        own = ["unshare", "--mount", "sh", "-c", mounts, str(self._programs), str(self._directory)]
        self._cluster.start_program(name, [*own, f"/tmp/programs/{name}", *words])
        self._started.append(name)

    def _ready(self, name: str) -> bool:
        status = self._cluster.namespaces.programs().get(name)
        if status is not None:
            raise RuntimeError(f"{name} ended with {status}:\n{self._cluster.log(name)[-3000:]}")
        webhooks = CONTROLLERS[name].settings is not None or CONTROLLERS[name].secret is not None
        try:
            self._cluster.namespaces.connect(self._ports[name] + (not webhooks)).close()
        except (OSError, RuntimeError):
            return False
        return True


def need_controllers() -> None:
    """Skip the calling test if the controllers are not built; fail it if ``CALABASH_KUBE=required``, as in CI."""
    try:
        controller_programs.found()
    except MissingError as missing:
        if os.environ.get("CALABASH_KUBE") == "required":
            pytest.fail(f"no workload controllers for tests: {missing}")
        pytest.skip(f"no workload controllers for tests: {missing}")


def certificate_files() -> dict[str, str]:
    """Return an authority and a server's certificate with their keys, in the form in which a Secret holds them."""
    now = datetime.datetime.now(datetime.UTC)
    keys = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "controllers of a test")])
    authority = _certificate(issuer, issuer, keys[0].public_key(), now, [x509.DNSName(_AUTHORITY)])
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    names = [x509.DNSName(_SERVER), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _SERVER)])
    server = _certificate(subject, issuer, keys[1].public_key(), now, names)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    written = [
        one.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM) for one in (authority, server)
    ]
    secret = [
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        for key in keys
    ]
    files = ("ca.crt", "tls.crt", "ca.key", "tls.key")
    return {file: content.decode() for file, content in zip(files, (*written, *secret), strict=True)}


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: rsa.RSAPublicKey,
    now: datetime.datetime,
    names: list[x509.GeneralName],
) -> x509.CertificateBuilder:
    """Return a certificate that is valid for a year: controllers renew one that ends within three months."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
