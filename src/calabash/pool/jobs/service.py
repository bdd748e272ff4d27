"""Service of jobs: commands that the pool runs for users of its machine.

A job is a ``calabash run`` that the pool starts for a user: under the user's account, never as root, without the pool's
environment, in a slice that it requests like any program of that account. A keeper process (``jobs.keeper``) supervises it and
outlives the pool. A principal who may read the command of an allocation may read the job and its output.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from calabash.adapters.host.accounts import LocalAccount, account_of
from calabash.adapters.host.children import start_module
from calabash.adapters.host.processes import Peer, Process, alive
from calabash.api import jobs as shapes
from calabash.api.jobs import JobState
from calabash.model.access import Action
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, UserName
from calabash.model.request import AllocationId
from calabash.model.tenancy import Principal, project_of
from calabash.platform.access.caller import Caller
from calabash.platform.access.permission import Permission
from calabash.pool.jobs.files import OUTPUT_BYTES, JobFacts, JobFiles, JobRecord
from calabash.pool.jobs.keeper import KeeperOrder
from calabash.pool.pool import Pool
from calabash.pool.settings import JobSettings

DIRECTORY = "jobs"
JOBS_MAX = 1000
BEGINS_S = 30.0  # a keeper that has not begun within this time is lost
_ACTIVE = {JobState.WAITING, JobState.RUNNING}
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"


class Jobs:
    """All jobs of a pool. Safe for threads."""

    def __init__(
        self, pool: Pool, *, home: Path, settings: JobSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._pool = pool
        self._home = home
        self._settings = settings
        self._clock = clock
        self._files = JobFiles(home / DIRECTORY)
        self._lock = threading.Lock()
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, order: shapes.JobOrder, caller: Caller) -> shapes.JobDetail:
        """Start a job. Raises CalabashError if the caller lacks permission or an account, or has too many jobs."""
        who = caller.principal
        if order.standing or order.enter:
            raise CalabashError("a job has a program of its own", hint="leave `standing` and `enter` out")
        if not order.command[0] or any("\0" in word for word in order.command):
            raise CalabashError("the command has no program, or zero bytes", hint="name the program first")
        wanted = self._pool.entry.admit(order, who)
        project = project_of(wanted.tenant, wanted.queue)
        self._pool.permission.require(who, Action.RUN, "start jobs", tenant=wanted.tenant, project=project)
        account = account_for_jobs(who, permission=self._pool.permission, settings=self._settings)
        self._pool.over_use.require_within(wanted.tenant)
        with self._lock:
            self._make_room(who, account)
            name = "j" + "".join(secrets.choice(_LETTERS) for _ in range(8))
            record = JobRecord(
                id=name,
                user=who.user,
                uid=account.uid,
                tenant=wanted.tenant,
                queue=wanted.queue,
                order=msgspec.structs.replace(order, tenant=wanted.tenant, queue=wanted.queue, project=""),
                created_at=self._clock(),
            )
            self._files.create(record)
            self._keepers[name] = self._keeper(record)
        return shapes.JobDetail(job=self._view(record, {}), output="", output_bytes_before=0)

    def listed(self, who: Principal) -> list[shapes.JobView]:
        """Return the visible jobs, newest first."""
        visibility = self._pool.visibility(who)
        seen = [r for r in self._files.records() if visibility.sees(tenant=r.tenant, uid=r.uid, user=r.user)]
        asking = self._asking()
        return [self._view(record, asking) for record in seen]

    def one(self, name: str, who: Principal) -> shapes.JobDetail:
        """Return a job and its output. Raises NOT_FOUND if there is none or the principal may not see it."""
        record = self._seen(name, who)
        said, facts = self._files.output(name), self._files.facts(name)
        return shapes.JobDetail(
            job=self._view(record, self._asking()),
            output=said[-OUTPUT_BYTES:].decode(errors="replace"),
            output_bytes_before=facts.dropped_bytes if facts else 0,
        )

    def stop(self, name: str, caller: Caller) -> str:
        """Begin to stop a job, or delete one that has ended; return ``stopping`` or ``forgotten``.

        Raises NOT_FOUND, NOT_PERMITTED.
        """
        who = caller.principal
        record = self._seen(name, who)
        self._pool.permission.require_owner(
            who, name, uid=record.uid, user=record.user, tenant=record.tenant, queue=record.queue
        )
        state, facts = self._now(record)
        if state not in _ACTIVE and not self._holds(facts):
            self._files.delete(name)
            return "forgotten"
        if facts is not None:
            _terminate(Process(pid=facts.keeper[0], start_time=facts.keeper[1]))
        elif (keeper := self._keepers.get(name)) is not None:
            keeper.terminate()
        if facts is not None and self._holds(facts):
            self._pool.agent.end(
                AllocationId(facts.allocation),
                reason="released",
                explanation=Message("its job was stopped by {user}", user=UserName(who.user)),
            )
        return "stopping"

    # -- inside ------------------------------------------------------------------------------------------------

    def _make_room(self, who: Principal, account: LocalAccount) -> None:
        """Delete the oldest ended jobs beyond the limits. Raises USER_LIMIT if the user has too many active jobs."""
        records = self._files.records()
        active = {r.id for r in records if self._now(r)[0] in _ACTIVE}
        mine = [r for r in records if r.uid == account.uid]
        running = sum(r.id in active for r in mine)
        if running >= self._settings.per_user or len(active) >= JOBS_MAX:
            raise CalabashError(
                f"user {who.user} has {running} jobs that wait or run, at most {self._settings.per_user}",
                reason=Reason.USER_LIMIT,
                hint="wait for one of them, or stop it",
            )
        over = [r for r in mine if r.id not in active][self._settings.kept - 1 :]
        over += [r for r in records if r.id not in active][JOBS_MAX - 1 :]
        for record in over:
            self._files.delete(record.id)
        for name in [n for n, keeper in self._keepers.items() if keeper.poll() is not None]:
            del self._keepers[name]

    def _keeper(self, record: JobRecord) -> subprocess.Popen[bytes]:
        told = KeeperOrder(
            id=record.id,
            uid=record.uid,
            home=str(self._home),
            directory=str(self._files.directory),
            order=record.order,
        )
        keeper = start_module(
            "calabash.pool.jobs.keeper",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            new_session=True,
        )
        assert keeper.stdin is not None
        with keeper.stdin:
            keeper.stdin.write(msgspec.json.encode(told))
        return keeper

    def _seen(self, name: str, who: Principal) -> JobRecord:
        record = self._files.record(name)
        if record is None or not self._pool.visibility(who).sees(
            tenant=record.tenant, uid=record.uid, user=record.user
        ):
            raise CalabashError(
                f"there is no job {name[:80]!r}", reason=Reason.NOT_FOUND, hint="see `calabash job list`"
            )
        return record

    def _now(self, record: JobRecord) -> tuple[JobState, JobFacts | None]:
        """Return the state of a job as its keeper has written it; LOST if the keeper has ended without a final state."""
        keeper = self._keepers.get(record.id)
        kept = keeper is not None and keeper.poll() is None
        facts = self._files.facts(record.id)
        if facts is None:
            fresh = kept or (keeper is None and self._clock() - record.created_at < BEGINS_S)
            return (JobState.WAITING if fresh else JobState.LOST), None
        if facts.state in _ACTIVE and not alive(Process(pid=facts.keeper[0], start_time=facts.keeper[1])):
            facts = self._files.facts(record.id) or facts  # it may have written its final state just now
            return (JobState.LOST if facts.state in _ACTIVE else facts.state), facts
        return facts.state, facts

    def _holds(self, facts: JobFacts | None) -> bool:
        """Return True if the job still holds its allocation."""
        if facts is None or not facts.allocation:
            return False
        held = self._pool.agent.record(AllocationId(facts.allocation))
        return held is not None and (held.client_pid, held.client_start_time) == facts.program

    def _asking(self) -> dict[tuple[int, int], str]:
        """Return the IDs of waiting requests by pid and start time of the requesting process."""
        asks = [(w.requester.process, w.id) for w in self._pool.binder.waiting()]
        return {(process.pid, process.start_time): name for process, name in asks if process is not None}

    def _view(self, record: JobRecord, asking: Mapping[tuple[int, int], str]) -> shapes.JobView:
        state, facts = self._now(record)
        facts = facts or JobFacts()
        lost = state is JobState.LOST
        return shapes.JobView(
            id=record.id,
            state=state,
            user=record.user,
            tenant=record.tenant,
            queue=record.queue,
            command=record.order.command,
            directory=record.order.directory,
            allocation=facts.allocation or asking.get(facts.program, ""),
            created_at=record.created_at,
            started_at=facts.started_at,
            ended_at=facts.ended_at,
            exit_code=facts.exit_code,
            reason=facts.reason,
            message="what kept it is gone: the machine was started again, or it was killed" if lost else facts.message,
            hint="its program may still run: see its slice, and start it again" if lost else facts.hint,
        )


def _terminate(process: Process) -> None:
    """Send SIGTERM to a process; does nothing if it has ended, even if its pid was reused."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (ProcessLookupError, ValueError, OSError):
        return
    try:
        if alive(process):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def account_for_jobs(who: Principal, *, permission: Permission, settings: JobSettings) -> LocalAccount:
    """Return the account that jobs of a user run as. Raises NOT_PERMITTED if the pool may not run jobs as that account."""
    if not settings.enabled:
        raise _refused("this pool runs no jobs", "its owner has switched them off: [jobs] enabled in pool.toml")
    account = account_of(who.uid)
    mine = os.geteuid()
    if account.uid == 0:
        raise _refused("a job never runs as root", "log in as a user with an account of its own, or use `calabash run`")
    if mine not in {0, account.uid}:
        raise _refused(f"the pool may not switch to account {account.name}", "only a pool of root runs others' jobs")
    if account.uid < settings.least_user and account.uid != mine:
        raise _refused(
            f"account {account.name} ({account.uid}) is one of the system's",
            f"jobs run as accounts from {settings.least_user} on: [jobs] least_user in pool.toml",
        )
    there = permission.of_peer(Peer(pid=0, uid=account.uid, gid=account.gid))
    if there.user != who.user:
        raise _refused(
            f"programs of account {account.name} are user {there.user}'s, not {who.user}'s",
            "ask an administrator for an account of your own: calabash user set NAME --login ACCOUNT",
        )
    return account


def _refused(message: str, hint: str) -> CalabashError:
    return CalabashError(message, reason=Reason.NOT_PERMITTED, hint=hint)
