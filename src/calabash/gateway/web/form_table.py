"""Table of all forms of the console: the pool's route that each calls, and the message shown afterwards."""

from __future__ import annotations

from calabash.api import endpoints
from calabash.gateway.web.form_invoices import INVOICES
from calabash.gateway.web.form_jobs import JOBS
from calabash.gateway.web.form_networks import NETWORKS
from calabash.gateway.web.form_notices import NOTICES
from calabash.gateway.web.form_teams import TEAMS
from calabash.gateway.web.forms import DURATION, Form, decimal, flag, text, whole, words

DEVICES = (
    Form(
        name="drain",
        needs="operate",
        endpoint=endpoints.DRAIN_DEVICE,
        at=("id",),
        fields={"reason": text, "evict": flag, "grace_s": DURATION},
        back="/devices/{id}",
        said="Device {id} is drained.",
    ),
    Form(
        name="undrain",
        needs="operate",
        endpoint=endpoints.UNDRAIN_DEVICE,
        at=("id",),
        back="/devices/{id}",
        said="Device {id} returns to service if it passes its test.",
    ),
    Form(
        name="mode",
        needs="operate",
        endpoint=endpoints.SET_DEVICE_MODE,
        at=("id",),
        fields={"mode": text},
        back="/devices/{id}",
        said="Device {id} is pinned to mode {mode}.",
    ),
    Form(
        name="settings",
        needs="operate",
        endpoint=endpoints.SET_DEVICE,
        at=("id",),
        fields={"replicas": whole, "interval": text, "spill": text},
        back="/devices/{id}",
        said="Settings of device {id} saved.",
    ),
    Form(
        name="test",
        needs="operate",
        endpoint=endpoints.TEST_DEVICE,
        at=("id",),
        back="/devices/{id}",
        said="Device {id} was tested.",
    ),
    Form(
        name="reset",
        needs="operate",
        endpoint=endpoints.RESET_DEVICE,
        at=("id",),
        back="/devices/{id}",
        said="Device {id} was reset.",
    ),
)
WORKLOADS = (
    Form(
        name="stop",
        needs="stop",
        endpoint=endpoints.RELEASE,
        at=("id",),
        query={"force": flag},
        back="/workloads",
        said="{id} was stopped.",
    ),
    Form(
        name="withdraw",
        needs="stop",
        endpoint=endpoints.RELEASE,
        at=("id",),
        back="/waiting",
        said="Request {id} withdrawn.",
    ),
    Form(
        name="move",
        needs="stop",
        endpoint=endpoints.CHANGE_QUEUE,
        at=("id", "queue"),
        back="/workloads/{id}",
        said="{id} moved to queue {queue}.",
    ),
)
QUEUES = (
    Form(
        name="queue",
        needs="operate",
        endpoint=endpoints.PUT_QUEUE,
        fields={
            "parent": text,
            "guarantee": decimal,
            "limit": decimal,
            "weight": decimal,
            "users": words,
            "groups": words,
            "new": flag,
        },
        blank={"parent": "", "guarantee": 0.0, "limit": None, "weight": 1.0, "users": [], "groups": []},
        back="/queues",
        said="Queue {name} saved.",
    ),
    Form(
        name="queue-delete",
        needs="operate",
        endpoint=endpoints.DELETE_QUEUE,
        back="/queues",
        said="Queue {name} deleted.",
    ),
)

SIMULATOR = (
    Form(
        name="fault",
        needs="shut-down",
        endpoint=endpoints.INJECT_FAULT,
        fields={"gpu": text, "fault": text, "value": text},
        back="/simulator",
        said="Device {gpu}: {fault} {value}",
    ),
)

FORMS = {
    form.name: form
    for form in (*DEVICES, *WORKLOADS, *JOBS, *QUEUES, *NETWORKS, *TEAMS, *INVOICES, *NOTICES, *SIMULATOR)
}
