"""Explain to the requesting user that a request is not placed, with numbers and hints. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, Text, joined
from calabash.model.request import GpuRequest
from calabash.node.snapshot import DeviceSnapshot
from calabash.sched import Explanation
from calabash.sharing.protocol import Misfit
from calabash.sharing.registry import resolve

DETAILS_MAX = 8

# For these reasons each device is checked: the scheduler counts nodes, and there is only one.
_ABOUT_DEVICES = {
    Reason.NO_MEMORY,
    Reason.NO_CORES,
    Reason.NO_CAPACITY,
    Reason.MODE_CONFLICT,
    Reason.UNHEALTHY,
    Reason.TOO_LARGE,
    Reason.SELECTOR_MISMATCH,
    Reason.NO_DEVICES,
}
_HINTS = {
    Reason.TOO_LARGE: "ask for less: no device of this pool could ever hold it",
    Reason.NO_DEVICES: "ask for fewer devices",
    Reason.SELECTOR_MISMATCH: "see `calabash smi` for the models there are",
    Reason.MODE_CONFLICT: "wait until the device is idle with --wait, or ask for the mode it is in",
    Reason.UNHEALTHY: "see `calabash smi` and `calabash doctor`",
    Reason.GANG_INCOMPLETE: "start the other members too, each with --wait",
    Reason.RESERVED: "wait behind it with --wait, or say with --time how long it runs: what delays nobody may pass",
    Reason.USER_LIMIT: "wait for your own earlier requests; see `calabash ps`",
    Reason.QUEUE_OVER_LIMIT: "wait for the queue's other programs with --wait; see `calabash queue list`",
}
# Messages for one machine, in place of the scheduler's messages about nodes.
_ABOUT_THE_MACHINE = {
    Reason.RESERVED: "what is free is reserved for an earlier request that needs several devices and still waits",
}
_HINT = "wait for room with --wait 60s, or ask for less; see `calabash smi`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Explanation of a request that is not placed.

    Args:
        message: one line with the numbers.
        details: the effect of past use, if there is one, and one line per device.
        suggestions: changes with which the request might be placed.
        overtaken: True if enough devices became free after the scheduler's decision, so that it should decide again.
    """

    reason: Reason
    message: Text
    details: tuple[Text, ...] = ()
    suggestions: tuple[Text, ...] = ()
    overtaken: bool = False

    def error(self) -> CalabashError:
        """Return the explanation as an error, for a request that does not wait."""
        return CalabashError(self.message, reason=self.reason, hint=self.suggestions[0] if self.suggestions else "")


def refusal(told: Explanation, states: Sequence[DeviceSnapshot], request: GpuRequest) -> Refusal:
    """Return the explanation for the user. Its details name each device on which the request does not fit.

    If the reason does not concern single devices, the details are the causes that the scheduler gives.

    Args:
        told: explanation of the scheduler. It counts nodes and does not name the devices of this machine.
        states: present states of the devices.
        request: the request that is not placed.
    """
    suggestions = (*told.changes, _HINTS.get(told.reason, _HINT))
    past_use = (told.past_use,) if told.past_use else ()
    if told.reason not in _ABOUT_DEVICES:
        reserved = (Message("reserved for {requests}", requests=requests) for requests in told.reserved)
        details = (*past_use, *(cause.text for cause in told.causes), *reserved)
        message = _ABOUT_THE_MACHINE.get(told.reason, told.summary)
        if told.reserved:
            message = Message("{reason}: {reserved}", reason=message, reserved=joined("; ", told.reserved))
        return Refusal(reason=told.reason, message=message, details=details, suggestions=suggestions)
    wanted = resolve(request)
    answers = [(s.device.index, wanted.fits(s.device, s.mode, s.held)) for s in states]
    said = tuple(f"device {index}: {answer.message}" for index, answer in answers if isinstance(answer, Misfit))
    room = len(answers) - len(said)
    shown = "; ".join(said[:DETAILS_MAX]) + (f"; and {len(said) - DETAILS_MAX} more" if len(said) > DETAILS_MAX else "")
    message = f"{room} of {len(answers)} devices have room, asked {request.count}" + (f": {shown}" if shown else "")
    overtaken = room >= request.count
    details = (*past_use, *said)
    return Refusal(reason=told.reason, message=message, details=details, suggestions=suggestions, overtaken=overtaken)
