"""Tenant networks as objects of a real API server: it accepts their definitions, and a cluster's server stores them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.contract.crds import CRDS, install
from tests.daemons.world import until
from tests.kube.cluster import Cluster

from calabash.adapters.kube import KubeClient, KubeError, load_client
from calabash.adapters.kube.objects.network_resources import NETWORK_KINDS, KubeNetworkObject
from calabash.adapters.store import open_store
from calabash.kubernetes.server.network_reconciler import KubeNetworkKeeper
from calabash.model.errors import Reason
from calabash.model.network import KINDS, NetworkKind, Vpc
from calabash.model.tenancy import Tenant
from calabash.net.objects.specs import encode
from calabash.platform.access.permission import Permission
from calabash.platform.networks.rights import NetworkRights
from calabash.platform.networks.store import NetworkStore
from calabash.platform.tenancy.directory import TenancyDirectory

PEOPLE = TenancyDirectory(tenants={"vision": Tenant(name="vision")})


@pytest.fixture
def kube(control_plane: Cluster) -> KubeClient:
    """Return a client of a real API server with the product's kinds."""
    client = load_client(control_plane.kubeconfig)
    install(client)
    until(lambda: all(_listed(client, kind) for kind in NETWORK_KINDS.values()), what="our kinds to be served")
    return client


def _listed(client: KubeClient, kind: Any) -> bool:
    """Return True if a kind can be listed, which is a moment after it is announced."""
    try:
        client.list(kind)
    except KubeError:
        return False
    return client.serves(kind)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[NetworkStore]:
    store = open_store(f"sqlite:///{tmp_path / 'pool.db'}")
    permission = Permission(0, everybody=True, people=lambda: PEOPLE)
    yield NetworkStore(store.networks, NetworkRights(permission, lambda: PEOPLE))
    store.close()


@pytest.fixture
def keeper(kube: KubeClient, store: NetworkStore) -> Iterator[KubeNetworkKeeper]:
    found = KubeNetworkKeeper(kube, store)
    found.start()
    yield found
    found.stop()


def test_every_noun_has_a_definition_with_its_fields() -> None:
    for noun, kind in KINDS.items():
        resource = NETWORK_KINDS[kind]
        definition = yaml.safe_load((CRDS / f"{resource.plural}.calabash.dev.yaml").read_text())
        assert definition["spec"]["names"]["kind"] == noun.__name__ == resource.name
        (version,) = definition["spec"]["versions"]
        fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        assert set(fields) == {name for name in noun.__struct_fields__ if name != "name"}  # type: ignore[attr-defined]


@pytest.mark.usefixtures("keeper")
def test_networks_are_objects_of_a_real_api_server(kube: KubeClient, store: NetworkStore) -> None:
    vpc = f"v{uuid.uuid4().hex[:8]}"

    def write(kind: NetworkKind, path: str, **spec: Any) -> None:
        kube.create(NETWORK_KINDS[kind], {"metadata": {"name": path.replace("/", ".")}, "spec": spec})

    def read(kind: NetworkKind, path: str) -> KubeNetworkObject | None:
        return kube.get(NETWORK_KINDS[kind], path.replace("/", "."))

    def valid(kind: NetworkKind, path: str) -> tuple[str, str]:
        found = read(kind, path)
        assert found is not None
        return next(((c.status, c.message) for c in found.status.conditions if c.type == "Valid"), ("", ""))

    write(NetworkKind.PORT, f"{vpc}/a/web1")
    write(NetworkKind.SUBNET, f"{vpc}/a", cidrs=["10.0.1.0/24"], dhcp=True)
    write(
        NetworkKind.SECURITY_GROUP,
        f"{vpc}/web",
        rules=[{"direction": "ingress", "protocol": "tcp", "ports": [80, 443], "peer": "0.0.0.0/0"}],
    )
    plain = Vpc(name=vpc, cidrs=(ip_network("10.0.0.0/16"),), tenant="vision")
    write(NetworkKind.VPC, vpc, **encode(plain))
    until(lambda: valid(NetworkKind.PORT, f"{vpc}/a/web1") == ("True", ""), what="the port to stand")
    port = read(NetworkKind.PORT, f"{vpc}/a/web1")
    assert port is not None
    assert port.status.completed["addresses"] == ["10.0.1.2"]
    assert port.metadata.finalizers == ("calabash.dev/network",)
    write(NetworkKind.SUBNET, f"{vpc}/b", cidrs=["10.0.1.128/25"])
    until(lambda: valid(NetworkKind.SUBNET, f"{vpc}/b")[0] == "False", what="the overlap to be told")
    assert "overlap" in valid(NetworkKind.SUBNET, f"{vpc}/b")[1]
    dead = {"kind": "ready", "holds": False, "reason": "northd_down", "message": "it is dead", "since_s": 1.0}
    store.report({("vpc", vpc): {"observed_generation": 1, "conditions": [dead], "host": ""}})

    def ready() -> tuple[str, str, str] | None:
        found = read(NetworkKind.VPC, vpc)
        assert found is not None
        return next(((c.status, c.reason, c.message) for c in found.status.conditions if c.type == "Ready"), None)

    until(lambda: ready() == ("False", "northd_down", "it is dead"), what="what does not answer to be told")
    for kind, path in (
        (NetworkKind.VPC, vpc),
        (NetworkKind.SUBNET, f"{vpc}/a"),
        (NetworkKind.SUBNET, f"{vpc}/b"),
        (NetworkKind.SECURITY_GROUP, f"{vpc}/web"),
        (NetworkKind.PORT, f"{vpc}/a/web1"),
    ):
        kube.delete(NETWORK_KINDS[kind], path.replace("/", "."))
    until(lambda: read(NetworkKind.VPC, vpc) is None, what="the VPC to go when nothing needs it")
    assert not store.state().kept


@pytest.mark.parametrize(
    ("kind", "name", "spec", "said"),
    [
        (NetworkKind.SUBNET, "red", {"cidrs": ["10.0.1.0/24"]}, "2 parts"),
        (NetworkKind.VPC, "red.a", {"cidrs": ["10.0.1.0/24"]}, "1 part"),
        (NetworkKind.VPC, "red", {}, "spec.cidrs"),
        (NetworkKind.NAT_RULE, "red.n", {"kind": "snat", "eip": "red/e", "port": "red/a/b"}, "spec.kind"),
        (NetworkKind.SECURITY_GROUP, "red.g", {"rules": [{"direction": "ingress", "ports": [1]}]}, "spec.rules"),
    ],
)
def test_object_that_the_schema_refuses_is_refused_at_once(
    kube: KubeClient, kind: NetworkKind, name: str, spec: dict[str, Any], said: str
) -> None:
    with pytest.raises(KubeError, match=said) as caught:
        kube.create(NETWORK_KINDS[kind], {"metadata": {"name": name}, "spec": spec})
    assert caught.value.reason is Reason.BAD_REQUEST
