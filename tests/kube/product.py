"""All components of the product on a cluster: admission, planner with its kube-scheduler, and a real node's agent."""

from __future__ import annotations

import base64
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kube.api import Json
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import CUDA, GpuNode

from calabash.adapters.kube import load_client
from calabash.kubernetes.admission.run import AdmissionProgram
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.webhooks import mutating, validating
from calabash.kubernetes.planner.serve.scheduler_config import scheduler_configuration
from calabash.kubernetes.serving_certificates.keeper import MUTATING, VALIDATING

PLANNER_PORT = 7070
ADMISSION_PORT = 18443
SETTINGS = AdmissionSettings()
PLANNER = SETTINGS.trusted_users[0]
USERS = {PLANNER: ["system:masters"]}  # the cluster's administrator: admission lets no other user write plans


def user_pod(name: str, limits: dict[str, str], script: str, **spec: Any) -> Json:
    """Return a pod in the form in which a user writes it."""
    main = {"name": "main", "image": CUDA, "command": ["sh", "-c", script], "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [main], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, **spec},
    }


def start_admission(
    cluster: Cluster,
    by: Callable[[str, Path], Path] = lambda _name, own: own,
    settings: AdmissionSettings = SETTINGS,
) -> AdmissionProgram:
    """Start admission in this process and register its webhooks at the API server. Its namespace must exist.

    Args:
        cluster: the cluster.
        by: returns the kubeconfig that a program uses, by the program's name and its own kubeconfig.
        settings: the settings of admission.
    """
    client = load_client(cluster.kubeconfig)
    url = f"https://127.0.0.1:{ADMISSION_PORT}"
    client.create(MUTATING, mutating(settings, url=url))
    client.create(VALIDATING, validating(settings, url=url))
    listener = cluster.listen(ADMISSION_PORT)
    client = load_client(by("admission", cluster.kubeconfig))
    admission = AdmissionProgram(client, settings, listener=listener, names=("127.0.0.1",), refresh_s=0.5)
    admission.start()
    return admission


def start_admission_program(cluster: Cluster) -> None:
    """Start admission as the program ``admission`` of the cluster, which can be killed and started again."""
    certificate, key = cluster.secrets.certificate("admission-server")
    directory = certificate.with_name("admission-tls")
    directory.mkdir()
    shutil.copy(certificate, directory / "tls.crt")
    shutil.copy(key, directory / "tls.key")
    settings = directory / "settings.yaml"
    settings.write_text(f"host: 127.0.0.1\nport: {ADMISSION_PORT}\ncertificate_dir: {directory}\n")
    client, url = load_client(cluster.kubeconfig), f"https://127.0.0.1:{ADMISSION_PORT}"
    bundle = base64.b64encode(certificate.read_bytes()).decode()
    client.create(MUTATING, mutating(SETTINGS, ca_bundle=bundle, url=url))
    client.create(VALIDATING, validating(SETTINGS, ca_bundle=bundle, url=url))
    words = ["--kubeconfig", str(cluster.kubeconfig), "--settings", str(settings)]
    cluster.start_program("admission", [str(Path(sys.executable).with_name("calabash")), "serve", "admission", *words])


class Product:
    """All components that the chart installs, around one node with cards.

    Args:
        gpu_node: the node.
        by: returns the kubeconfig that a program ("planner" or "admission") uses, by the program's name and its own
            kubeconfig. A test can so put a proxy in between.
        planner_words: further arguments of the planner.
        programs: True to run admission as a program of the cluster, which can be killed, instead of in this process.
    """

    def __init__(
        self,
        gpu_node: GpuNode,
        *,
        by: Callable[[str, Path], Path] = lambda _name, own: own,
        planner_words: Sequence[str] = (),
        programs: bool = False,
    ) -> None:
        self._by, self._planner_words = by, planner_words
        self.gpu_node = gpu_node
        self.cluster = gpu_node.cluster
        self.api = self.cluster.api
        self.namespace(SETTINGS.namespace)
        self._admission: AdmissionProgram | None = None
        if programs:
            start_admission_program(self.cluster)
        else:
            self._admission = start_admission(self.cluster, by)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        if self._admission is not None:
            self.cluster.wait_for(self._admission.ready, "the admission server")
        kubeconfig = self._by("planner", self.cluster.secrets.kubeconfig(PLANNER))
        words = ["--kubeconfig", str(kubeconfig), "--listen", f"127.0.0.1:{PLANNER_PORT}", *self._planner_words]
        program = str(Path(sys.executable).with_name("calabash"))
        self.cluster.start_program("planner", [program, "serve", "planner", "--identity", "its-pod", *words])
        self.cluster.add_scheduler("calabash-scheduler", scheduler_configuration(f"http://127.0.0.1:{PLANNER_PORT}"))

    def namespace(self, name: str, **labels: str) -> str:
        """Create a namespace in which pods can be created; return its name."""
        if not self.api.exists(f"/api/v1/namespaces/{name}"):
            self.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self.cluster.wait_for(lambda: self.api.exists(account), "the service account of a new namespace")
        return name

    def create(self, namespace: str, pod: Json) -> str:
        """Create the pod and return its name."""
        self.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
        return str(pod["metadata"]["name"])

    def pod(self, namespace: str, name: str) -> Json:
        """Return the pod from the API server."""
        return self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def wait(self, namespace: str, name: str, *phases: str, timeout_s: float = 120) -> str:
        """Wait until the pod has one of the phases, and return the phase."""

        def phase() -> str:
            status = self.pod(namespace, name)["status"]
            found = str(status.get("phase", ""))
            assert found in phases or found != "Failed", f"{name}: {status.get('reason')}: {status.get('message')}"
            return found if found in phases else ""

        try:
            return self.cluster.wait_for(phase, f"pod {name} {' or '.join(phases)}", timeout_s)
        except TimeoutError as error:
            error.add_note(self.cluster.kubectl("describe", "pod", name, "-n", namespace, check=False))
            raise

    def log(self, namespace: str, name: str) -> str:
        """Return the output of the pod's main container."""
        return self.cluster.kubectl("logs", name, "-n", namespace)

    def delete(self, namespace: str, name: str) -> None:
        """Delete the pod and wait until it is gone."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        self.api.delete(path, {"gracePeriodSeconds": 0})
        self.cluster.wait_for(lambda: not self.api.exists(path), f"the end of pod {name}")

    def condition(self, namespace: str, name: str) -> Json:
        """Return the condition PodScheduled of the pod; {} if there is none yet."""
        conditions = self.pod(namespace, name)["status"].get("conditions", [])
        return next((c for c in conditions if c["type"] == "PodScheduled"), {})

    def close(self) -> None:
        if self._admission is not None:
            self._admission.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
