"""Kubelet as a DRA driver sees it, over real Unix sockets; behaves as the real one of 1.36, as far as it is implemented.

It finds the driver in its registry, calls the newest instance in a version that both know, and follows health.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from calabash.adapters.kubelet.stubs import dra_pb2 as pb
from calabash.adapters.kubelet.stubs import drahealth_pb2 as health_pb
from calabash.adapters.kubelet.stubs import pluginregistration_pb2 as registration_pb

WAIT_S = 60.0
Claim = tuple[str, str, str]  # namespace, UID, name


class FakeDraKubelet:
    """A kubelet whose root directory is ``root``; ``known``: versions of the service that it knows."""

    def __init__(self, root: Path, known: Iterable[str] = ("v1.DRAPlugin", "v1beta1.DRAPlugin")) -> None:
        self.plugins, self.registry = root / "plugins", root / "plugins_registry"
        for directory in (self.plugins, self.registry):
            directory.mkdir(parents=True, exist_ok=True)
        self.known = tuple(known)
        self.infos: dict[Path, registration_pb.PluginInfo] = {}  # by registration socket, the newest last

    def poll_registry(self, error: str = "") -> list[registration_pb.PluginInfo]:
        """Process new and removed sockets as the kubelet's watcher does; ``error``: answer new ones with it."""
        there = set(self.registry.glob("*.sock"))
        for gone in self.infos.keys() - there:
            del self.infos[gone]
        for fresh in sorted(there - self.infos.keys(), key=lambda path: path.stat().st_ctime_ns):
            self.infos[fresh] = self._register(fresh, error)
        return list(self.infos.values())

    def restart(self) -> None:
        """Lose all registrations; the sockets stay."""
        self.infos.clear()

    def wait_for(self, count: int = 1) -> None:
        """Wait until ``count`` instances are registered."""
        until(lambda: len(self.poll_registry()) == count)

    def prepare(self, *claims: Claim, timeout_s: float = WAIT_S) -> pb.NodePrepareResourcesResponse:
        request = pb.NodePrepareResourcesRequest(claims=map(_claim, claims))
        reply: pb.NodePrepareResourcesResponse = self._call("NodePrepareResources", request, timeout_s)
        return reply

    def unprepare(self, *claims: Claim, timeout_s: float = WAIT_S) -> pb.NodeUnprepareResourcesResponse:
        request = pb.NodeUnprepareResourcesRequest(claims=map(_claim, claims))
        reply: pb.NodeUnprepareResourcesResponse = self._call("NodeUnprepareResources", request, timeout_s)
        return reply

    def raw(self, method: str, body: bytes) -> bytes:
        """Return the answer to a request of any bytes."""
        with self._channel() as channel:
            call = channel.unary_unary(
                f"/{self._service()}/{method}", request_serializer=bytes, response_deserializer=bytes
            )
            answer: bytes = call(body, timeout=WAIT_S)
            return answer

    @contextmanager
    def health(self, version: str = "v1alpha1") -> Iterator[Iterator[health_pb.NodeWatchResourcesResponse]]:
        """Follow the stream of health for the block."""
        with self._channel() as channel:
            watch = channel.unary_stream(
                f"/{version}.DRAResourceHealth/NodeWatchResources",
                request_serializer=health_pb.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=health_pb.NodeWatchResourcesResponse.FromString,
            )
            stream: Any = watch(health_pb.NodeWatchResourcesRequest(), timeout=WAIT_S)
            yield stream
            stream.cancel()

    def _service(self) -> str:
        info = list(self.infos.values())[-1]
        version = next(version for version in info.supported_versions if version in self.known)
        return f"k8s.io.kubelet.pkg.apis.dra.{version}"

    def _channel(self) -> grpc.Channel:
        return _channel(list(self.infos.values())[-1].endpoint)

    def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        with self._channel() as channel:
            call = channel.unary_unary(
                f"/{self._service()}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=getattr(pb, f"{method}Response").FromString,
            )
            return call(request, timeout=timeout_s)

    def _register(self, socket: Path, error: str) -> registration_pb.PluginInfo:
        status = registration_pb.RegistrationStatus
        with _channel(socket) as channel:
            info: registration_pb.PluginInfo = channel.unary_unary(
                "/pluginregistration.Registration/GetInfo",
                request_serializer=registration_pb.InfoRequest.SerializeToString,
                response_deserializer=registration_pb.PluginInfo.FromString,
            )(registration_pb.InfoRequest(), timeout=WAIT_S, wait_for_ready=True)
            channel.unary_unary(
                "/pluginregistration.Registration/NotifyRegistrationStatus",
                request_serializer=status.SerializeToString,
                response_deserializer=registration_pb.RegistrationStatusResponse.FromString,
            )(status(plugin_registered=not error, error=error), timeout=WAIT_S)
        return info


def until(check: Callable[[], bool]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


def _channel(socket: Path | str) -> grpc.Channel:
    return grpc.insecure_channel(f"unix:{socket}", options=(("grpc.use_local_subchannel_pool", 1),))


def _claim(claim: Claim) -> pb.Claim:
    namespace, uid, name = claim
    return pb.Claim(namespace=namespace, uid=uid, name=name)
