"""Kubelet that a benchmark drives: its gRPC, checkpoint and pod-resources answers are those of a real one.

It assigns device IDs as the device manager of Kubernetes 1.34 to 1.36 does: containers of a pod are admitted in order, IDs of
init containers pass on to later containers, entries of deleted pods are dropped at the next admission, the checkpoint is
written after every Allocate, and PreStartContainer comes before every start. A container is then made as by a runtime, from
the CDI files alone (``_container``).
"""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from tests.contract.fake_kubelet import FakeKubelet, serve

from bench._starts import INIT, WantedContainer
from calabash.adapters.kubelet.stubs import deviceplugin_pb2 as pb
from calabash.adapters.kubelet.stubs import podresources_pb2 as resources_pb
from calabash.kubernetes.objects.names import GPUS

CALL_S = 30.0  # timeout of the real kubelet
CHECKPOINT = "kubelet_internal_checkpoint"


class NotNowError(Exception):
    """A call to repeat, as a kubelet repeats it: the plug-in is away or refuses, or the runtime cannot resolve a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Device IDs and answer of the plug-in that a container got when its pod was admitted."""

    namespace: str
    pod: str
    tokens: tuple[str, ...]
    answer: pb.ContainerAllocateResponse


class _Line(FakeKubelet):
    """Kubelet that never waits for a plug-in that has closed its connection."""

    @staticmethod
    def _call(channel: grpc.Channel, method: str, request: Any, reply: Any, timeout_s: float = CALL_S) -> Any:
        call = channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return call(request, timeout=timeout_s, wait_for_ready=method == "GetDevicePluginOptions")


class DrivenKubelet:
    """Kubelet of one node, whose directory is ``root``; its runtime reads CDI files from ``specs``."""

    def __init__(self, root: Path, specs: Path) -> None:
        self._plugins = root / "device-plugins"
        self._resources = root / "pod-resources"
        for directory in (self._plugins, self._resources, specs):
            directory.mkdir(parents=True)
        self._resolver = Resolver(specs)
        self._line = _Line(self._plugins)
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str], Entry] = {}
        self._server: grpc.Server | None = None
        self.reused = 0  # admissions with a device ID that another pod has had before
        self._had: dict[str, str] = {}
        self.garbled = False

    def start(self) -> None:
        self._line.start()
        handler = grpc.unary_unary_rpc_method_handler(
            lambda _request, _context: self._listing(),
            resources_pb.ListPodResourcesRequest.FromString,
            resources_pb.ListPodResourcesResponse.SerializeToString,
        )
        (self._resources / "kubelet.sock").unlink(missing_ok=True)
        self._server = serve(self._resources / "kubelet.sock", "v1.PodResourcesLister", {"List": handler})

    def stop(self) -> None:
        self._line.stop()
        if self._server is not None:
            self._server.stop(0).wait()

    def wait_for_device_ids(self, timeout_s: float = 60) -> None:
        self._line.wait(lambda: bool(self._line.devices), timeout_s)

    def garble(self, yes: bool) -> None:
        """Write the checkpoint in an unknown format, so that the agent must use pod-resources, or in the known one again."""
        with self._lock:
            self.garbled = yes
            self._write()

    def admit(
        self,
        uid: str,
        namespace: str,
        pod: str,
        containers: Sequence[WantedContainer],
        active: Callable[[], Collection[str]],
    ) -> None:
        """Assign device IDs to all containers of a pod. Raises NotNowError."""
        with self._lock:
            alive = active()
            self._entries = {key: entry for key, entry in self._entries.items() if key[0] in alive}
            passed_on: set[str] = set()
            for container in containers:
                key = (uid, container.name)
                if key not in self._entries:
                    tokens = self._choose(len(container.plan.slices), passed_on)
                    answer = self._ask(lambda tokens=tokens: self._line.allocate(*tokens))
                    self._entries[key] = Entry(
                        namespace=namespace, pod=pod, tokens=tokens, answer=answer.container_responses[0]
                    )
                    self._write()
                    for token in tokens:
                        self.reused += self._had.get(token, uid) != uid
                        self._had[token] = uid
                given = set(self._entries[key].tokens)
                passed_on = passed_on | given if container.kind == INIT else passed_on - given

    def _choose(self, count: int, passed_on: Collection[str]) -> tuple[str, ...]:
        used = {token for entry in self._entries.values() for token in entry.tokens}
        healthy = [token for token, health in sorted(self._line.devices.items()) if health == "Healthy"]
        chosen = [*sorted(passed_on), *(token for token in healthy if token not in used)][:count]
        if len(chosen) < count:
            raise NotNowError(f"{len(chosen)} of {count} tokens are free")
        return tuple(chosen)

    def prepare(self, uid: str, container: str) -> dict[str, Any]:
        """Call PreStartContainer and return the CDI edits of the container's devices. Raises NotNowError."""
        with self._lock:
            entry = self._entries[uid, container]
        self._ask(lambda: self._line.pre_start(*entry.tokens, timeout_s=CALL_S))
        return self._resolver.all({device.name for device in entry.answer.cdi_devices})

    def _ask(self, question: Any) -> Any:
        try:
            if not self._line.devices:
                raise NotNowError("no plug-in is registered")
            return question()
        except grpc.RpcError as error:
            raise NotNowError(str(error.details() if isinstance(error, grpc.Call) else error)) from error
        except (AssertionError, ValueError) as error:  # the channel has just been closed
            raise NotNowError(repr(error)) from error

    def _write(self) -> None:
        entries = [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": GPUS,
                "DeviceIDs": {"-1": list(entry.tokens)},
                "AllocResp": base64.b64encode(entry.answer.SerializeToString()).decode(),
            }
            for (uid, container), entry in self._entries.items()
        ]
        data: dict[str, Any] = {
            "PodDeviceEntries": entries,
            "RegisteredDevices": {GPUS: sorted(self._line.devices)},
        }
        if self.garbled:
            data["Shape"] = "of tomorrow"
        coming = self._plugins / f".{CHECKPOINT}.new"
        coming.write_text(json.dumps({"Data": data, "Checksum": 1}))
        coming.rename(self._plugins / CHECKPOINT)

    def _listing(self) -> resources_pb.ListPodResourcesResponse:
        """Return the answer of pod-resources, without init containers."""
        reply = resources_pb.ListPodResourcesResponse()
        with self._lock:
            for (_uid, container), entry in self._entries.items():
                if not container.startswith(("first", "second")):
                    pod = reply.pod_resources.add(name=entry.pod, namespace=entry.namespace)
                    held = pod.containers.add(name=container)
                    held.devices.add(resource_name=GPUS, device_ids=entry.tokens)
        return reply


class Resolver:
    """Resolver of CDI device names, as in a runtime: a name that two files of the directory define is invalid."""

    def __init__(self, specs: Path) -> None:
        self._specs = specs

    def all(self, names: Collection[str]) -> dict[str, Any]:
        """Return the merged edits of the devices; a mount that two of them have is kept once. Raises NotNowError."""
        found = []
        for file in self._specs.glob("*.json"):
            try:
                spec = json.loads(file.read_text())
            except FileNotFoundError:
                continue
            found += [d["containerEdits"] for d in spec["devices"] if f"{spec['kind']}={d['name']}" in names]
        if len(found) != len(names):
            raise NotNowError(f"{len(found)} of {len(names)} CDI devices can be resolved")
        mounts = {mount["containerPath"]: mount for edits in found for mount in edits.get("mounts", [])}
        return {"env": [word for edits in found for word in edits.get("env", [])], "mounts": list(mounts.values())}


class Runtime:
    """Client of ``_container``, which starts programs.

    Args:
        socket: path of the socket on which it listens.
        root: the file system of all containers.
        groups: the control group below which those of pods are made.
    """

    def __init__(self, socket: Path, root: Path, groups: Path) -> None:
        self._socket, self._root, self._groups = socket, root, groups

    def start(self, uid: str, number: int, edits: Mapping[str, Any], argv: Sequence[str]) -> socket.socket:
        """Start a program in a container of a pod; return the connection to its standard input and output."""
        group = self._groups / f"pod{uid}" / f"{number:064x}"
        group.mkdir(parents=True, exist_ok=True)
        env = dict(word.split("=", 1) for word in edits.get("env", []))
        mounts = [(m["hostPath"], m["containerPath"], m.get("options", [])) for m in edits.get("mounts", [])]
        request = {"group": str(group), "root": str(self._root), "mounts": mounts, "env": env, "argv": list(argv)}
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(str(self._socket))
        connection.sendall(json.dumps(request).encode() + b"\n")
        return connection

    def end(self, uid: str) -> bool:
        """Remove the pod's control groups, as the kubelet does; return False while a program is in one."""
        pod = self._groups / f"pod{uid}"
        if not pod.exists():
            return True
        try:
            for group in pod.iterdir():
                if group.is_dir():
                    group.rmdir()
            pod.rmdir()
        except OSError:
            return False
        return True
