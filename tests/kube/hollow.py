"""Hollow kubelets: they run no containers, report pods of fake nodes as running, and remove pods that are deleted."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from tests.kube.api import Api, Json, RefusedError, Watch

_WHEN = "2026-01-01T00:00:00Z"
_GONE = {404, 409}


def running(pod: Json) -> Json:
    """Return the status of a pod whose containers have all started."""
    containers = [
        {
            "name": one["name"],
            "image": one["image"],
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": _WHEN}},
        }
        for one in pod["spec"]["containers"]
    ]
    ready = [{"type": kind, "status": "True", "lastTransitionTime": _WHEN} for kind in ("Ready", "ContainersReady")]
    return {"phase": "Running", "startTime": _WHEN, "conditions": ready, "containerStatuses": containers}


class HollowKubelets:
    """Thread that reports the pods of all nodes whose names begin with ``prefix`` as running.

    It runs while the context is entered, which must be left before the cluster is closed. A test can end a pod by
    patching its phase to ``Succeeded`` or ``Failed``; these phases are kept.
    """

    def __init__(self, api: Api, prefix: str = "fake-") -> None:
        self._api = api
        self._prefix = prefix
        self._watch: Watch | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        if self._watch is not None:
            self._watch.close()
        self._thread.join(60)

    def _follow(self) -> None:
        while not self._leaving.wait(0.05):
            try:
                listed = self._api.get("/api/v1/pods")
                for pod in listed["items"]:
                    self._reconcile(pod)
                self._watch = self._api.watch(f"/api/v1/pods?resourceVersion={listed['metadata']['resourceVersion']}")
                if self._leaving.is_set():
                    self._watch.close()
                for event in self._watch:
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._reconcile(event["object"])
            except (OSError, RefusedError):
                continue  # the API server is being restarted: list again

    def _reconcile(self, pod: Json) -> None:
        metadata, phase = pod["metadata"], pod["status"].get("phase", "Pending")
        if not pod["spec"].get("nodeName", "").startswith(self._prefix):
            return
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            if "deletionTimestamp" in metadata:
                self._api.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
            elif phase == "Pending":
                self._api.patch(
                    f"{path}/status", {"metadata": {"uid": metadata["uid"]}, "status": running(pod)}, "merge"
                )
        except RefusedError as refused:
            if refused.status not in _GONE:
                raise
