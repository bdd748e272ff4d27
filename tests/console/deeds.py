"""Actions of the console as data: a page, the form on it, its fields, and the users who may use it.

The test runs each action as each user: permitted users do it by clicking; the others are not offered it and are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.console.people import ROLES

EVERYBODY = frozenset(ROLES)
ADMIN = frozenset({"ada"})
OPERATORS = frozenset({"ada", "ola"})
OF_VISION = frozenset({"ada", "tom"})
MAY_STOP = frozenset({"ada", "ola", "tom", "mia"})
MAY_RUN = frozenset({"ada", "tom", "mia"})


@dataclass(frozen=True, kw_only=True)
class Deed:
    """An action. ``fields`` are filled in; ``fixed`` are values by which the form differs from others of its page.

    In values, ``{made}`` stands for the object that ``prepare`` made and ``{user}`` for the user. ``told`` is a part of the
    text of the next page.
    """

    page: str
    form: str
    users: frozenset[str]
    told: str
    fields: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=dict)
    prepare: str = ""
    offered: frozenset[str] | None = None  # where the form is shown to more users than those whose fields are accepted

    @property
    def name(self) -> str:
        return self.form + ("-" + next(iter(self.fields.values())) if self.offered else "")


_CARD = {"id": "1"}
_TEAM = {"tenant": "vision", "name": "{user}-part"}
DEEDS = (
    Deed(
        page="/devices/1",
        form="drain",
        users=OPERATORS,
        told="is drained",
        fields={"reason": "a fan"},
        fixed=_CARD,
    ),
    Deed(page="/devices/1", form="undrain", users=OPERATORS, told="returns to service", fixed=_CARD, prepare="drained"),
    Deed(page="/devices/1", form="mode", users=OPERATORS, told="pinned to mode", fields={"mode": "auto"}, fixed=_CARD),
    Deed(
        page="/devices/1",
        form="settings",
        users=OPERATORS,
        told="Settings of device",
        fields={"replicas": "0"},
        fixed=_CARD,
    ),
    Deed(page="/devices/1", form="test", users=OPERATORS, told="was tested", fixed=_CARD),
    Deed(page="/devices/1", form="reset", users=OPERATORS, told="was reset", fixed=_CARD),
    Deed(
        page="/workloads/{made}",
        form="stop",
        users=MAY_STOP,
        told="was stopped",
        fixed={"id": "{made}"},
        prepare="runs",
    ),
    Deed(
        page="/workloads/{made}",
        form="move",
        users=MAY_STOP,
        told="moved to queue vision/night",
        fields={"queue": "vision/night"},
        fixed={"id": "{made}"},
        prepare="waits",
    ),
    Deed(
        page="/workloads/{made}",
        form="withdraw",
        users=MAY_STOP,
        told="withdrawn.",
        fixed={"id": "{made}"},
        prepare="waits",
    ),
    Deed(
        page="/jobs",
        form="job",
        users=MAY_RUN,
        offered=EVERYBODY,
        told="started.",
        fields={"tenant": "vision", "command": "sh -c 'echo hello'", "memory_mib": "100MiB", "cores": "1"},
    ),
    Deed(page="/jobs/{made}", form="job-stop", users=MAY_STOP, told="stopping", fixed={"id": "{made}"}, prepare="job"),
    Deed(
        page="/workloads",
        form="reserve",
        users=OPERATORS,
        told="created.",
        fields={"mode": "brokered", "memory_mib": "100MiB", "cores": "1", "keep_s": "1h", "note": "a visit"},
    ),
    Deed(
        page="/queues", form="queue", users=OPERATORS, told="saved.", fields={"name": "{user}-queue", "guarantee": "0"}
    ),
    Deed(
        page="/queues",
        form="queue-delete",
        users=OPERATORS,
        told="deleted.",
        fixed={"name": "{user}-queue"},
        prepare="queue",
    ),
    Deed(page="/tenants", form="tenant", users=ADMIN, told="saved.", fields={"name": "{user}-team", "budget": "50EUR"}),
    Deed(
        page="/tenants/{made}",
        form="tenant-delete",
        users=ADMIN,
        told="deleted.",
        fixed={"name": "{made}"},
        prepare="tenant",
    ),
    Deed(
        page="/tenants/vision",
        form="project",
        users=OF_VISION,
        told="saved.",
        fields={"name": "{user}-new", "guarantee": "0"},
        fixed={"tenant": "vision"},
    ),
    Deed(
        page="/tenants/vision", form="project-delete", users=OF_VISION, told="deleted.", fixed=_TEAM, prepare="project"
    ),
    Deed(
        page="/tenants/vision",
        form="member",
        users=OF_VISION,
        told="has the role viewer",
        fields={"user": "guest", "role": "viewer"},
        fixed={"tenant": "vision"},
        prepare="guest",
    ),
    Deed(
        page="/tenants/vision",
        form="member-remove",
        users=OF_VISION,
        told="removed from the members.",
        fixed={"user": "guest", "tenant": "vision"},
        prepare="member",
    ),
    Deed(page="/users", form="user", users=ADMIN, told="saved.", fields={"name": "{user}-friend", "email": "a@b.test"}),
    Deed(
        page="/users", form="user-delete", users=ADMIN, told="deleted.", fixed={"name": "{user}-friend"}, prepare="user"
    ),
    Deed(
        page="/tokens",
        form="token",
        users=EVERYBODY,
        told="Token created.",
        fields={"note": "a test", "scopes": "read"},
    ),
    Deed(
        page="/tokens",
        form="token-revoke",
        users=EVERYBODY,
        told="revoked.",
        prepare="token",
        fixed={"id": "{made}"},
    ),
    Deed(
        page="/tariffs",
        form="tariff",
        users=ADMIN,
        told="saved.",
        fields={
            "name": "plain",
            "currency": "EUR",
            "valid_from": "2020-01-01",
            "guaranteed": "2.00",
            "borrowed": "1.00",
        },
    ),
    Deed(
        page="/invoices",
        form="invoice-draft",
        users=ADMIN,
        told="created.",
        fields={"month": "2026-01", "tenant": "vision"},
        prepare="tariff",
    ),
    Deed(
        page="/invoices/{made}",
        form="invoice-issue",
        users=ADMIN,
        told="Issued as invoice",
        fixed={"number": "{made}"},
        prepare="draft",
    ),
    Deed(
        page="/invoices/{made}",
        form="invoice-credit",
        users=ADMIN,
        told="Credit note C",
        fields={"amount": "0.50", "reason": "the network was down"},
        fixed={"number": "{made}"},
        prepare="issued",
    ),
    Deed(
        page="/invoices/{made}",
        form="invoice-void",
        users=ADMIN,
        told="voided",
        fixed={"number": "{made}"},
        prepare="draft",
    ),
    Deed(page="/simulator", form="fault", users=ADMIN, told="recover", fixed={"gpu": "1", "fault": "recover"}),
)

# Pages that are not everybody's, and whose they are.
PAGES_OF: dict[str, frozenset[str]] = {
    "/simulator": ADMIN,
    "/audit": frozenset({"ada", "ola", "vera", "tom"}),
}
