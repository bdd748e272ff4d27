"""gRPC service of a claim driver: prepares claims in threads, and streams the health of devices.

Every claim of a request is answered in time: a claim that takes too long is answered with an error before the kubelet
gives up, its work continues, and the kubelet gets the result when it asks again. A slow claim therefore does not delay
another. A repeated call for a claim shares the running work; another call for the same claim runs after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio

from calabash.adapters.kubelet.followed_value import Followed
from calabash.adapters.kubelet.protocol import ClaimHandler, ClaimRef, DeviceHealth, PreparedDevice
from calabash.adapters.kubelet.service import refusal
from calabash.adapters.kubelet.stubs import dra_pb2 as pb
from calabash.adapters.kubelet.stubs import drahealth_pb2 as health_pb
from calabash.model.errors import CalabashError

CLAIM_MESSAGE_BYTES_MAX = 1 << 20
CLAIMS_MAX = 1024
ANSWER_S = 30.0  # kubelets wait 45 s
HEALTH_AGAIN_S = 20.0
_HEALTH_VALID_S = 90
_MESSAGE_MAX = 1024
_THREADS = 32
_NAME_MAX, _UID_MAX = 253, 64
_SERVICE = "k8s.io.kubelet.pkg.apis.dra.{}.DRAPlugin"
R = TypeVar("R")
_Context = grpc.aio.ServicerContext[Any, Any]
_Work = tuple[str, str]  # operation and UID of the claim


class ClaimService:
    """Implementation of ``DRAPlugin`` and ``DRAResourceHealth``. All methods except ``stop`` run on the event loop.

    Args:
        handler: prepares and unprepares claims.
        on_fault: called for exceptions of the handler that are not a CalabashError.
        answer_s: longest wait for a claim.
    """

    def __init__(
        self, handler: ClaimHandler, on_fault: Callable[[Exception], None], *, answer_s: float = ANSWER_S
    ) -> None:
        self._handler, self._on_fault, self._answer_s = handler, on_fault, answer_s
        self._threads = ThreadPoolExecutor(_THREADS, "dra-claim")
        self._running: dict[_Work, asyncio.Future[Any]] = {}
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}  # by UID: lock, number of users
        self.health = Followed(health_pb.NodeWatchResourcesResponse())

    def handlers(self) -> tuple[grpc.GenericRpcHandler[Any, Any], ...]:
        """Return the gRPC handlers of the services for claims and for health, each in two versions of the API."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        prepare, unprepare = pb.NodePrepareResourcesResponse, pb.NodeUnprepareResourcesResponse
        health = {
            "NodeWatchResources": stream(
                self._watch,
                health_pb.NodeWatchResourcesRequest.FromString,
                health_pb.NodeWatchResourcesResponse.SerializeToString,
            )
        }
        claims = {
            version: {
                "NodePrepareResources": unary(
                    answer, pb.NodePrepareResourcesRequest.FromString, prepare.SerializeToString
                ),
                "NodeUnprepareResources": unary(
                    self._unprepare, pb.NodeUnprepareResourcesRequest.FromString, unprepare.SerializeToString
                ),
            }
            for version, answer in (("v1", self._prepare), ("v1beta1", self._prepare_v1beta1))
        }
        return (
            *(grpc.method_handlers_generic_handler(_SERVICE.format(v), calls) for v, calls in claims.items()),
            *(grpc.method_handlers_generic_handler(f"{v}.DRAResourceHealth", health) for v in ("v1", "v1alpha1")),
        )

    def stop(self) -> None:
        """End the threads; running work ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _prepare(
        self, request: pb.NodePrepareResourcesRequest, context: _Context
    ) -> pb.NodePrepareResourcesResponse:
        reply = pb.NodePrepareResourcesResponse()
        for uid, answer in await self._each("prepare", request.claims, self._handler.prepare, context):
            if isinstance(answer, str):
                reply.claims[uid].error = answer
            else:
                reply.claims[uid].devices.extend(map(_device, answer))
        return reply

    async def _prepare_v1beta1(
        self, request: pb.NodePrepareResourcesRequest, context: _Context
    ) -> pb.NodePrepareResourcesResponse:
        reply = await self._prepare(request, context)
        for claim in reply.claims.values():
            for device in claim.devices:
                device.ClearField("share_id")
        return reply

    async def _unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: _Context
    ) -> pb.NodeUnprepareResourcesResponse:
        reply = pb.NodeUnprepareResourcesResponse()
        for uid, answer in await self._each("unprepare", request.claims, self._handler.unprepare, context):
            reply.claims[uid].error = answer or ""
        return reply

    async def _each(
        self, what: str, claims: Iterable[pb.Claim], work: Callable[[ClaimRef], R], context: _Context
    ) -> list[tuple[str, R | str]]:
        """Call ``work`` for each claim; return pairs of the claim's UID and the result of the call.

        If a call fails, the text of its error takes the place of the result.

        Args:
            what: kind of the work. If work of this kind is running for a claim, its result is awaited instead.
        """
        refs = {claim.uid: ClaimRef(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims}
        if len(refs) > CLAIMS_MAX:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{len(refs)} claims, at most {CLAIMS_MAX}")
        answers = await asyncio.gather(*(self._one(what, ref, work) for ref in refs.values()))
        return list(zip(refs, answers, strict=True))

    async def _one(self, what: str, claim: ClaimRef, work: Callable[[ClaimRef], R]) -> R | str:
        if not (claim.uid and claim.name and claim.namespace) or not _is_short(claim):
            return "the kubelet sent a claim without a UID, name or namespace, or with one that is too long"
        key = (what, claim.uid)
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = asyncio.ensure_future(self._serialized(claim, work))
            running.add_done_callback(partial(self._ended, key))
        try:
            return await asyncio.wait_for(asyncio.shield(running), self._answer_s)
        except TimeoutError:
            return (
                f"claim {claim.namespace}/{claim.name} is still being prepared or released; hint: the kubelet retries"
            )
        except CalabashError as error:
            return refusal(error)
        except Exception as error:
            self._on_fault(error)
            return f"fault in the agent: {type(error).__name__}: {error}"[:_MESSAGE_MAX]

    async def _serialized(self, claim: ClaimRef, work: Callable[[ClaimRef], R]) -> R:
        lock, waiting = self._locks.get(claim.uid) or (asyncio.Lock(), 0)
        self._locks[claim.uid] = lock, waiting + 1
        try:
            async with lock:
                return await asyncio.get_running_loop().run_in_executor(self._threads, work, claim)
        finally:
            _, waiting = self._locks[claim.uid]
            if waiting > 1:
                self._locks[claim.uid] = lock, waiting - 1
            else:
                del self._locks[claim.uid]

    def _ended(self, key: _Work, done: asyncio.Future[Any]) -> None:
        del self._running[key]
        if not done.cancelled():
            done.exception()  # retrieve it: the caller may have been answered before

    async def _watch(
        self, _request: health_pb.NodeWatchResourcesRequest, _context: _Context
    ) -> AsyncIterator[health_pb.NodeWatchResourcesResponse]:
        """Yield all devices when one has changed, and every HEALTH_AGAIN_S seconds, because reports expire."""
        async with aclosing(self.health.follow(again_s=HEALTH_AGAIN_S)) as following:
            async for health in following:
                told = health_pb.NodeWatchResourcesResponse()
                told.CopyFrom(health)
                now_s = int(time.time())
                for device in told.devices:
                    device.last_updated_time = now_s
                yield told


def health_list(devices: Sequence[DeviceHealth]) -> health_pb.NodeWatchResourcesResponse:
    """Return the devices as the kubelet's message. The caller adds the time of the report to each device."""
    told = health_pb.NodeWatchResourcesResponse()
    for device in devices:
        entry = told.devices.add(
            health=device.state.value,
            health_check_timeout_seconds=_HEALTH_VALID_S,
            message=device.message[:_MESSAGE_MAX],
        )
        entry.device.pool_name, entry.device.device_name = device.pool, device.device
    return told


def _device(prepared: PreparedDevice) -> pb.Device:
    return pb.Device(
        request_names=prepared.requests,
        pool_name=prepared.pool,
        device_name=prepared.device,
        cdi_device_ids=prepared.cdi_names,
        share_id=prepared.share_id or None,
    )


def _is_short(claim: ClaimRef) -> bool:
    return len(claim.uid) <= _UID_MAX and len(claim.name) <= _NAME_MAX and len(claim.namespace) <= _NAME_MAX
