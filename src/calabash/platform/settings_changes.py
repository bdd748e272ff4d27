"""Apply partial changes of settings: check that the object exists, and add to or remove from lists of names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec import UNSET, UnsetType

from calabash.api.replies import QueueView
from calabash.api.requests import QueueSettings
from calabash.model.allocation import QueueRecord
from calabash.model.errors import CalabashError, Reason


def require_presence(
    what: str, name: str, *, exists: bool, new: bool | UnsetType, tenant: str = "", command: str = ""
) -> None:
    """Raise CONFLICT if an object to create exists, and NOT_FOUND if an object to change does not.

    Args:
        what: the kind of object: ``queue``, ``tenant``.
        new: True if the request is to create the object, False if it is to change it; UNSET permits both.
        tenant: the tenant that a project belongs to.
        command: the command for such objects, for hints; "" if it has the name of the kind.
    """
    command = f"calabash {command or what}"
    full, words, of = (f"{tenant}/{name}", f"{tenant} {name}", f" {tenant}") if tenant else (name, name, "")
    if new is True and exists:
        raise CalabashError(
            f"{what} {full} exists already",
            reason=Reason.CONFLICT,
            hint=f"change it with `{command} set {words}`",
        )
    if new is False and not exists:
        raise CalabashError(
            f"there is no {what} {full}",
            reason=Reason.NOT_FOUND,
            hint=f"see `{command} list{of}`, or create it with `{command} create {words}`",
        )


def changed_names(
    where: str, before: Iterable[str], wanted: Sequence[str] | UnsetType, added: Sequence[str], removed: Sequence[str]
) -> tuple[str, ...]:
    """Return a list of names after a change, in order, each name once.

    Args:
        where: the list, for messages: ``the users of queue prod``.
        before: the names in the list now.
        wanted: names that replace those in ``before``; UNSET keeps these.
        added: names to add.
        removed: names to remove.

    Raises:
        CalabashError: NOT_FOUND if a name to remove is not in the list.
    """
    names = dict.fromkeys((*(before if isinstance(wanted, UnsetType) else wanted), *added))
    for name in removed:
        if name not in names:
            raise CalabashError(
                f"{name} is not one of {where}",
                reason=Reason.NOT_FOUND,
                hint=f"they are: {', '.join(names)}" if names else "there are none",
            )
        del names[name]
    return tuple(names)


def changed_queue(before: QueueRecord, wanted: QueueSettings) -> QueueRecord:
    """Return the record of a queue with the settings that a request names; the other settings are unchanged.

    Raises:
        CalabashError: BAD_REQUEST if the request has different guarantees by the present and the former name.
    """
    if UNSET not in (wanted.guarantee, wanted.deserved) and wanted.guarantee != wanted.deserved:
        raise CalabashError(
            f"queue {before.name}: guarantee {wanted.guarantee} and deserved {wanted.deserved} differ",
            hint="deserved is the former name of guarantee; omit it",
        )
    named = {"parent": wanted.parent, "deserved": wanted.guaranteed, "limit": wanted.limit, "weight": wanted.weight}
    return replace(
        before,
        **{setting: value for setting, value in named.items() if value is not UNSET},  # type: ignore[arg-type]
        users=changed_names(
            f"the users of queue {before.name}", before.users, wanted.users, wanted.add_users, wanted.remove_users
        ),
        groups=changed_names(
            f"the groups of queue {before.name}", before.groups, wanted.groups, wanted.add_groups, wanted.remove_groups
        ),
    )


def guarantee_warnings(queues: Iterable[QueueView], devices: int) -> list[str]:
    """Return a warning if the guarantees of all queues without a parent exceed the number of devices; otherwise no warning."""
    guaranteed = sum(queue.guarantee for queue in queues if not queue.parent)
    if guaranteed <= devices:
        return []
    warning = (
        f"queues and tenants are guaranteed {guaranteed:g} devices in all, and there are {devices}:"
        " not all of them can have their guarantee at the same time"
    )
    return [warning]
