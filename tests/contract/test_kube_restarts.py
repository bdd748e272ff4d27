"""Client and mirror while a real API server and its etcd are killed and started again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest
from tests.kube.cluster import Cluster

from calabash.adapters.kube import Expired, HttpKubeClient, KubeError, Mirror, MirrorChange, load_client
from calabash.adapters.kube.objects.core import CONFIG_MAP, ConfigMap
from calabash.model.errors import CalabashError, Reason
from calabash_testing.api_server.observer import MirrorFailures

pytestmark = pytest.mark.slow
WAIT_S = 90.0
SPACE = "default"


@pytest.fixture
def kube(own_control_plane: Cluster) -> HttpKubeClient:
    return load_client(own_control_plane.kubeconfig)


def until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


def patiently(act: Callable[[], object]) -> None:
    """Repeat a call until the API server accepts it; one that has just started may not yet authorize the client."""

    def done() -> bool:
        try:
            act()
        except KubeError as error:
            if error.reason not in {Reason.API_DOWN, Reason.NOT_PERMITTED}:
                raise
            return False
        return True

    until(done)


def test_a_version_from_before_a_restart_is_expired(own_control_plane: Cluster, kube: HttpKubeClient) -> None:
    kube.create(CONFIG_MAP, {"metadata": {"name": f"m-{uuid.uuid4().hex}"}}, SPACE)
    own_control_plane.restart("apiserver")
    with pytest.raises(Expired):
        list(kube.watch(CONFIG_MAP, "1", SPACE))


def test_a_mirror_loses_nothing_while_api_server_and_etcd_are_killed(
    own_control_plane: Cluster, kube: HttpKubeClient
) -> None:
    held: dict[str, ConfigMap] = {}
    wrong: list[str] = []

    def note(change: MirrorChange[ConfigMap]) -> None:
        obj = change.after or change.before
        assert obj is not None
        if (change.before is None) != (obj.metadata.name not in held):
            wrong.append(obj.metadata.name)
        if change.after is None:
            held.pop(obj.metadata.name, None)
        else:
            held[obj.metadata.name] = change.after

    failures = MirrorFailures()
    mirror = Mirror(kube, CONFIG_MAP, on_change=note, observer=failures, namespace=SPACE)
    mirror.start()
    assert mirror.synced(WAIT_S)
    for turn, component in enumerate(("apiserver", "etcd", "apiserver")):
        name = f"r-{turn}"
        patiently(lambda name=name: kube.create(CONFIG_MAP, {"metadata": {"name": name}}, SPACE))  # type: ignore[misc]
        own_control_plane.kill(component)
        assert turn or not _reachable(kube)
        own_control_plane.start(component)
        patiently(lambda name=name: kube.delete(CONFIG_MAP, name, SPACE))  # type: ignore[misc]
        patiently(lambda turn=turn: kube.create(CONFIG_MAP, {"metadata": {"name": f"s-{turn}"}}, SPACE))  # type: ignore[misc]
    listed = {obj.metadata.name: obj for obj in kube.list(CONFIG_MAP, SPACE).items}
    assert {"s-0", "s-1", "s-2"} <= set(listed)
    until(lambda: held == listed)
    mirror.stop()
    assert wrong == []
    assert failures.errors
    assert {type(error) for error in failures.errors} <= {KubeError, Expired}


def _reachable(kube: HttpKubeClient) -> bool:
    try:
        return kube.get(CONFIG_MAP, "none", SPACE) is None
    except CalabashError as error:
        if error.reason is not Reason.API_DOWN:
            raise
        return False
