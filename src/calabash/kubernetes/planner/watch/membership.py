"""Read the membership of a pod in the gang of its owner."""

from __future__ import annotations

from calabash.adapters.kube.objects.core import Pod
from calabash.kubernetes.gang_member import GangMember, read_member
from calabash.kubernetes.objects.names import GANG_MEMBER
from calabash.kubernetes.pod_request import PodRequest
from calabash.model.errors import CalabashError


def gang_member(pod: Pod, request: PodRequest | None, fault: str) -> tuple[GangMember | None, str]:
    """Return the membership that admission wrote, and why the pod cannot be planned ("" if it can).

    Args:
        request: the request of the pod; None if it requests no devices. Without a request, an annotation that cannot be
            read prevents the planning of the pod; with one, it is ignored.
        fault: why the request cannot be read; "" if it can.
    """
    text = pod.metadata.annotations.get(GANG_MEMBER)
    if text is None or fault:
        return None, fault
    try:
        return read_member(text), ""
    except CalabashError as error:
        return None, "" if request is not None else str(error).replace("\n", "; ")
