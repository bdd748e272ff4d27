"""HTTP server for kube-scheduler: the extender verbs filter, preempt and bind.

Filter and preempt are answered from memory. A bind request of a gang's member is held until the gang is complete. It
occupies no thread meanwhile. It ends when the binding is permitted or refused, or when kube-scheduler closes the
connection. A thread of a small pool then writes the plan and the binding.

Clients are not authenticated; the server therefore listens on the loopback of the pod that it shares with kube-scheduler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
import structlog

from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.decide.extender_answers import BindAnswer, BindVerdict, FilterAnswer
from calabash.model.errors import CalabashError
from calabash.transport.http1 import Bounds, HttpQuestion, HttpReply
from calabash.transport.small_server import SmallServer

log = structlog.get_logger(__name__)

# A pod and the names of a hundred thousand nodes; a bind is held in a connection of its own, for every pod of a gang. All
# clients have the same address: the loopback's.
BOUNDS = Bounds(
    body_bytes=32 << 20, held_bytes=128 << 20, connections=1 << 14, per_peer=1 << 14, first_s=120.0, body_s=10.0
)
NOT_LEADING = "this planner does not lead; another answers"
_NAMES_TOLD_MAX = 5000


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    nominated_node_name: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta
    status: _Status = _Status()


class _FilterArgs(msgspec.Struct, frozen=True, rename="pascal"):
    pod: msgspec.Raw
    node_names: list[str] | None = None


class _PreemptionArgs(msgspec.Struct, frozen=True, rename="pascal"):
    pod: _Pod
    node_name_to_meta_victims: dict[str, msgspec.Raw] | None = None


class _BindingArgs(msgspec.Struct, frozen=True):
    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class Planning(Protocol):
    """Source of the answers for kube-scheduler. Safe for threads. Only ``write_binding`` calls the API server."""

    def leads(self) -> bool: ...

    def planned_node(self, uid: str) -> str | None:
        """Return the node on which the pod may run now; None if it has no usable plan. Does not block."""
        ...

    def filter(self, uid: str, offered: list[str], nominated: str, pod: bytes) -> FilterAnswer | None:
        """Return the permitted node for a pod; None if it requests no devices and may run on any offered node.

        Args:
            uid: UID of the pod.
            offered: names of the nodes that kube-scheduler offers.
            nominated: the pod's nominated node; "" for none.
            pod: the pod as JSON, in case the planner has not seen it yet.
        """
        ...

    def preempt(self, uid: str, offered: list[str]) -> list[str]: ...

    def bind(self, pod: PodName, node: str) -> BindAnswer: ...

    def write_binding(self, pod: PodName, node: str, answer: BindAnswer) -> None:
        """Write the binding and the plan of ``answer``. Raises CalabashError if the API server refuses."""
        ...

    def cancel_hold(self, uid: str) -> None: ...


class Extender:
    """Handler of kube-scheduler's extender requests (filter, preempt and bind), for a ``SmallServer``.

    Args:
        planning: source of the answers.
        hold_s: longest time in seconds for which a bind request is held for its gang.
        writers: number of bindings that are written at the same time.
    """

    def __init__(self, planning: Planning, *, hold_s: float, writers: int = 16) -> None:
        self._planning = planning
        self._hold_s = hold_s
        self._held: dict[str, asyncio.Future[str]] = {}
        self._threads = ThreadPoolExecutor(writers, thread_name_prefix="planner-bind")
        self._filter_thread = ThreadPoolExecutor(1, thread_name_prefix="planner-filter")
        self._verbs: dict[str, Callable[[bytes], Any]] = {
            "/filter": self._filter,
            "/preempt": self._preempt,
            "/bind": self._bind,
        }

    def close(self) -> None:
        """Wait for the bindings in progress, and drop those that have not begun."""
        self._threads.shutdown(cancel_futures=True)
        self._filter_thread.shutdown(cancel_futures=True)

    async def handle(self, question: HttpQuestion) -> HttpReply:
        """Answer one request."""
        if question.method == "GET":
            ready = question.path != "/readyz" or self._planning.leads()
            return _text(HTTPStatus.OK, "ok") if ready else _text(HTTPStatus.SERVICE_UNAVAILABLE, NOT_LEADING)
        verb = self._verbs.get(question.path)
        if verb is None or question.method != "POST":
            return _text(HTTPStatus.NOT_FOUND, "no such path: filter, preempt and bind are answered here")
        if not self._planning.leads():
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, NOT_LEADING)
        try:
            reply: HttpReply = await verb(question.body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return _text(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            log.exception("a request failed", path=question.path)
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return reply

    def release_held(self, uids: list[str]) -> None:
        """Continue the held bindings of these pods, because their gang is complete. Call it in the server's loop."""
        for uid in uids:
            self._answer(uid, "")

    def refuse_held(self, refused: list[tuple[str, str]]) -> None:
        """Refuse held bindings, given as UID and explanation of each. Call it in the server's loop."""
        for uid, text in refused:
            self._answer(uid, text)

    def refuse_all_held(self) -> None:
        """Refuse all held bindings because leadership was lost; kube-scheduler asks again.

        Call it in the server's loop.
        """
        self.refuse_held([(uid, NOT_LEADING) for uid in self._held])

    # ---- inside ---------------------------------------------------------------------------------------------------

    async def _filter(self, body: bytes) -> HttpReply:
        args = msgspec.json.decode(body, type=_FilterArgs)
        offered = args.node_names or []
        pod = msgspec.json.decode(args.pod, type=_Pod)
        uid = pod.metadata.uid
        node = self._planning.planned_node(uid)
        if node is not None and node in offered:
            return _filtered(FilterAnswer(node=node), offered)
        loop = asyncio.get_running_loop()
        nominated = pod.status.nominated_node_name
        answer = await loop.run_in_executor(
            self._filter_thread, self._planning.filter, uid, offered, nominated, bytes(args.pod)
        )
        if answer is None:
            return HttpReply(body=msgspec.json.encode({"NodeNames": offered}))
        return _filtered(answer, offered)

    async def _preempt(self, body: bytes) -> HttpReply:
        args = msgspec.json.decode(body, type=_PreemptionArgs)
        victims = args.node_name_to_meta_victims or {}
        loop = asyncio.get_running_loop()
        uid = args.pod.metadata.uid
        nodes = await loop.run_in_executor(self._filter_thread, self._planning.preempt, uid, list(victims))
        kept = {node: victims[node] for node in nodes}
        return HttpReply(body=msgspec.json.encode({"NodeNameToMetaVictims": kept}))

    async def _bind(self, body: bytes) -> HttpReply:
        args = msgspec.json.decode(body, type=_BindingArgs)
        loop = asyncio.get_running_loop()
        pod = PodName(uid=args.pod_uid, namespace=args.pod_namespace, name=args.pod_name)
        permit: asyncio.Future[str] = loop.create_future()
        self._held[pod.uid] = permit
        try:
            answer = await loop.run_in_executor(self._threads, self._bind_and_write, pod, args.node)
            if answer.verdict is BindVerdict.HOLD:
                refused = await asyncio.wait_for(permit, self._hold_s + 5)
                if refused:
                    return _bound(refused)
                answer = await loop.run_in_executor(self._threads, self._bind_and_write, pod, args.node)
            if answer.verdict not in (BindVerdict.GO, BindVerdict.DONE):
                return _bound(answer.text)
        except TimeoutError:
            self._planning.cancel_hold(pod.uid)
            return _bound("its gang was not complete in time")
        except asyncio.CancelledError:
            self._planning.cancel_hold(pod.uid)
            raise
        except CalabashError as error:
            return _bound(error.message)
        finally:
            if self._held.get(pod.uid) is permit:
                del self._held[pod.uid]
        return _bound("")

    def _bind_and_write(self, pod: PodName, node: str) -> BindAnswer:
        """Return the verdict, after writing the binding if it is GO.

        Runs in a thread, which completes the write even if kube-scheduler closes the connection.
        """
        answer = self._planning.bind(pod, node)
        if answer.verdict is BindVerdict.GO:
            self._planning.write_binding(pod, node, answer)
        return answer

    def _answer(self, uid: str, text: str) -> None:
        permit = self._held.get(uid)
        if permit is not None and not permit.done():
            permit.set_result(text)


def extender_server(extender: Extender, at: tuple[str, int], *, healthy: Callable[[], bool]) -> SmallServer:
    """Return the HTTP server of an extender, which listens only while ``healthy`` returns True."""
    return SmallServer(
        extender.handle, at, name="planner-extender", healthy=healthy, cancels=True, ending_s=0.0, bounds=BOUNDS
    )


def _text(status: HTTPStatus, text: str) -> HttpReply:
    return HttpReply(status=status, body=text.encode(), content_type="text/plain")


def _filtered(answer: FilterAnswer, offered: list[str]) -> HttpReply:
    if answer.node is not None:
        return HttpReply(body=msgspec.json.encode({"NodeNames": [answer.node]}))
    refused = dict.fromkeys(offered[:_NAMES_TOLD_MAX], answer.text[:512])
    return HttpReply(body=msgspec.json.encode({"NodeNames": [], "FailedAndUnresolvableNodes": refused}))


def _bound(error: str) -> HttpReply:
    return HttpReply(body=msgspec.json.encode({"Error": error}))
