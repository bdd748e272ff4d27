"""Installation of the product's CustomResourceDefinitions in a real API server."""

from __future__ import annotations

import time
from pathlib import Path

import yaml

from calabash.adapters.kube import KubeClient, KubeError
from calabash.adapters.kube.objects.core import Condition
from calabash.adapters.kube.objects.meta import Kind, KubeStruct, ObjectMeta, T
from calabash.adapters.kube.objects.resources import GPU_NODE, QUEUE

CRDS = Path(__file__).resolve().parents[2] / "charts" / "calabash" / "crds"
WAIT_S = 90.0


class DefinitionStatus(KubeStruct, frozen=True):
    """Status of a definition, as the API server reports it."""

    conditions: tuple[Condition, ...] = ()


class Definition(KubeStruct, frozen=True):
    """A CustomResourceDefinition."""

    metadata: ObjectMeta
    status: DefinitionStatus = DefinitionStatus()


DEFINITION = Kind(
    api_version="apiextensions.k8s.io/v1",
    name="CustomResourceDefinition",
    plural="customresourcedefinitions",
    namespaced=False,
    type=Definition,
)


def install(client: KubeClient) -> None:
    """Apply the definitions of the chart, and wait until the kinds are served."""
    for path in sorted(CRDS.glob("*.yaml")):
        body = yaml.safe_load(path.read_text())
        client.patch(DEFINITION, body["metadata"]["name"], body=body, style="apply", field_manager="tests", force=True)
    end = time.monotonic() + WAIT_S
    while not (_served(client, GPU_NODE) and _served(client, QUEUE)):
        assert time.monotonic() < end, f"our kinds are not served in {WAIT_S} s"
        time.sleep(0.05)


def _served(client: KubeClient, kind: Kind[T]) -> bool:
    """Return True if a kind can be listed, which is a moment after it is announced."""
    try:
        client.list(kind)
    except KubeError:
        return False
    return client.serves(kind)
