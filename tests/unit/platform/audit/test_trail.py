"""Audit log: written lines are found again, and changes of the log are detected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from calabash.adapters.store import Store, open_store
from calabash.model.audit import AuditLine
from calabash.platform.audit import trail
from calabash.platform.audit.trail import AuditTrail
from calabash_testing.clock import VirtualClock


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = open_store(f"sqlite:///{tmp_path}/pool.db")
    yield made
    made.close()


@pytest.fixture
def log(store: Store, tmp_path: Path) -> Iterator[AuditTrail]:
    made = AuditTrail(tmp_path, store.audit, VirtualClock())
    made.start()
    yield made
    made.stop()


def _write(log: AuditTrail, count: int) -> None:
    for number in range(count):
        log.add(AuditLine(at=0, user="ann", action="PUT", target=f"/v1/queues/q{number}")).result(timeout=60)


def _do(tmp_path: Path, statement: str) -> None:
    """Execute a statement as the owner of the tables, without the triggers that guard them."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/pool.db")
    with engine.begin() as connection:
        for guard in ("audit_no_update", "audit_no_delete"):
            connection.execute(sa.text(f"DROP TRIGGER {guard}"))
        connection.execute(sa.text(statement))
    engine.dispose()


def test_lines_are_numbered_and_the_chain_holds(log: AuditTrail, store: Store) -> None:
    _write(log, 5)
    assert [line.id for line in store.audit.lines()] == [1, 2, 3, 4, 5]
    assert [line.target for line in store.audit.lines(limit=2, newest=True)] == ["/v1/queues/q3", "/v1/queues/q4"]
    at, wrong = log.verify()
    assert (at.id, wrong) == (5, "")


@pytest.mark.parametrize(
    ("statement", "holds_up_to", "words"),
    [
        ("UPDATE audit SET user = 'bob' WHERE id = 3", 2, "line 3 was changed after it was written"),
        ("UPDATE audit SET outcome = 403 WHERE id = 1", 0, "line 1 was changed after it was written"),
        ("DELETE FROM audit WHERE id = 2", 1, "line 2 is missing"),
        ("DELETE FROM audit WHERE id >= 4", 3, "the log ended with line 5: lines were cut off"),
        ("DELETE FROM audit", 0, "the log ended with line 5: lines were cut off"),
        ("UPDATE audit SET id = 9 WHERE id = 5", 4, "line 5 is missing"),
    ],
)
def test_a_line_that_was_changed_removed_or_cut_off_is_found(
    log: AuditTrail, tmp_path: Path, statement: str, holds_up_to: int, words: str
) -> None:
    _write(log, 5)
    _do(tmp_path, statement)
    at, wrong = log.verify()
    assert (at.id, wrong) == (holds_up_to, words)


def test_a_log_that_starts_again_goes_on_with_its_chain(store: Store, tmp_path: Path) -> None:
    for _ in range(3):
        log = AuditTrail(tmp_path, store.audit, VirtualClock())
        log.start()
        _write(log, 2)
        log.stop()
    assert AuditTrail(tmp_path, store.audit, VirtualClock()).verify()[0].id == 6
    assert AuditTrail(tmp_path, store.audit, VirtualClock()).verify()[1] == ""


def test_retention_takes_the_oldest_and_the_chain_still_holds(log: AuditTrail, store: Store) -> None:
    _write(log, 10)
    assert store.audit.trim(kept=4, before_s=0.0) == 6
    assert [line.id for line in store.audit.lines()] == [7, 8, 9, 10]
    assert log.verify()[1] == ""
    assert store.audit.trim(kept=4, before_s=1e12) == 3, "the newest one stays"
    _write(log, 1)
    assert (log.verify()[0].id, log.verify()[1]) == (11, "")


@pytest.mark.parametrize("which", ["", " WHERE id = 8", " WHERE id = 11"])
def test_database_refuses_to_delete_lines_that_retention_has_kept(
    log: AuditTrail, store: Store, tmp_path: Path, which: str
) -> None:
    _write(log, 11)
    assert store.audit.trim(kept=4, before_s=0.0) == 7
    engine = sa.create_engine(f"sqlite:///{tmp_path}/pool.db")
    with (
        pytest.raises(sa.exc.IntegrityError, match="a line of the audit log never changes"),
        engine.begin() as connection,
    ):
        connection.execute(sa.text(f"DELETE FROM audit{which}"))
    engine.dispose()
    assert [line.id for line in store.audit.lines()] == [8, 9, 10, 11]
    assert log.verify()[1] == ""


def test_one_user_cannot_fill_it_and_what_was_left_out_is_counted(store: Store, tmp_path: Path) -> None:
    clock = VirtualClock()
    log = AuditTrail(tmp_path, store.audit, clock)
    line = AuditLine(at=0, user="eve", action="GET", target="/v1/audit", outcome=403)
    for _ in range(trail.AT_ONCE + 50):
        log.add(line, bounded=True)
    log.add(AuditLine(at=0, user="ann", action="GET", outcome=403), bounded=True)
    clock.advance(2)
    log.add(line, bounded=True)
    log.start()
    log.stop()
    found = store.audit.lines(limit=1000)
    assert [sum(x.user == user for x in found) for user in ("eve", "ann")] == [trail.AT_ONCE + 1, 1]
    assert found[-1].reason == "(50 lines of this user left out before)"


def test_the_key_and_the_head_are_for_the_pool_only(log: AuditTrail, tmp_path: Path) -> None:
    _write(log, 1)
    assert {name: (tmp_path / name).stat().st_mode & 0o777 for name in (trail.KEY_FILE, trail.HEAD_FILE)} == {
        trail.KEY_FILE: 0o600,
        trail.HEAD_FILE: 0o600,
    }


def test_refusals_are_gathered_and_do_not_delay_a_caller_that_waits_for_its_line(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    add = store.audit.add

    def counted(lines: Sequence[AuditLine]) -> None:
        written.append(len(lines))
        add(lines)

    monkeypatch.setattr(store.audit, "add", counted)
    monkeypatch.setattr(trail, "GATHER_S", 3600.0)
    log = AuditTrail(tmp_path, store.audit, VirtualClock())
    log.start()
    refusals = [log.add(AuditLine(at=0, user="eve", action="GET", outcome=403), bounded=True) for _ in range(20)]
    assert not any(done.done() for done in refusals)
    log.add(AuditLine(at=0, user="ann", action="PUT")).result(timeout=60)
    assert all(done.done() for done in refusals)
    assert written == [21]
    log.add(AuditLine(at=0, user="eve", action="GET", outcome=403), bounded=True)
    log.stop()
    assert written == [21, 1]
    assert log.verify()[1] == ""
