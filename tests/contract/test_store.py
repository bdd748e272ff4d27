"""Contract of the store, on SQLite and on PostgreSQL."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

import calabash
from calabash.adapters.store import Retention, Store, open_store, public_url, tables
from calabash.adapters.store.database import Database
from calabash.model.allocation import AllocationRecord, AllocationState, QueueRecord, UsageRecord
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import in_full
from calabash.model.request import AllocationId, ComputePolicy, GpuRequest, ModeName, Placement, Selector, Slice


def _engine(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


def _record(name: str = "a1", **changes: object) -> AllocationRecord:
    record = AllocationRecord(
        id=AllocationId(name),
        state=AllocationState.GRANTED,
        request=GpuRequest(
            memory_mib=8192,
            core_percent=30,
            policy=ComputePolicy.BURST,
            tenant="vision",
            selector=Selector(models=("A100",), uuids=(DeviceUuid("GPU-1"),)),
        ),
        placement=Placement(
            node=NodeName("here"),
            mode=ModeName("vgpu"),
            slices=(Slice(device=DeviceUuid("GPU-1"), memory_mib=8192, core_percent=30),),
        ),
        user="ann",
        uid=1000,
        client_pid=4711,
        client_start_time=1 << 40,
        command=("python", "train.py", "--name", "Zoë \x01 'quoted'"),
        slot="/somewhere/a1",
        created_at=1_700_000_000.25,
        granted_at=1_700_000_000.5,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def _usage(name: str = "a1", from_s: float = 10.0) -> UsageRecord:
    return UsageRecord(
        sequence=round(from_s),
        allocation=AllocationId(name),
        device=DeviceUuid("GPU-1"),
        tenant="vision",
        queue="default",
        from_s=from_s,
        to_s=from_s + 10,
        memory_mib=8192,
        core_percent=30,
        allocated_gpu_s=3.0,
        used_gpu_s=2.5,
        memory_mib_s=81920.0,
    )


def test_an_allocation_comes_back_exactly_as_it_was_journalled(store: Store) -> None:
    store.grant(_record())
    assert store.allocations() == [_record()]
    assert store.allocation(AllocationId("a1")) == _record()
    assert store.allocation(AllocationId("other")) is None


def test_everything_survives_closing_and_opening_again(url: str) -> None:
    first = open_store(url)
    first.grant(_record())
    first.administration.put_queue(QueueRecord(name="prod", deserved=4.0, limit=8.0))
    first.add_events([{"at": 1.0, "kind": "granted", "allocation": "a1"}])
    first.close()
    second = open_store(url)
    assert second.allocations() == [_record()]
    assert second.administration.queues() == [QueueRecord(name="prod", deserved=4.0, limit=8.0)]
    assert [e.kind for e in second.events()] == ["granted"]
    second.close()


def test_a_grant_can_be_repeated_without_changing_what_happened_since(store: Store) -> None:
    store.grant(_record())
    store.start(AllocationId("a1"), at=5.0)
    store.grant(_record())
    assert store.allocations()[0].state is AllocationState.RUNNING


def test_the_program_of_a_held_allocation_is_remembered(store: Store) -> None:
    store.grant(_record())
    store.note(AllocationId("a1"), program=(12, 1 << 40))
    found = store.allocations()[0]
    assert (found.program_pid, found.program_start_time) == (12, 1 << 40)
    store.release(AllocationId("a1"), at=1.0, reason="done", explanation="")
    store.note(AllocationId("a1"), program=(13, 1))
    assert store.allocations(ended=True)[0].program_pid == 12


def test_reason_of_an_ending_allocation_is_kept_until_its_release(store: Store) -> None:
    store.grant(_record())
    store.note(AllocationId("a1"), end=("reclaim", "its devices were needed"))
    (held,) = store.allocations()
    assert (held.state, held.reason, held.explanation) == (_record().state, "reclaim", "its devices were needed")
    store.release(AllocationId("a1"), at=1.0, reason="reclaim", explanation="said again")
    store.note(AllocationId("a1"), end=("other", ""))
    (ended,) = store.allocations(ended=True)
    assert (ended.reason, ended.explanation) == ("reclaim", "said again")


def test_states_only_move_forward(store: Store) -> None:
    store.grant(_record())
    store.release(AllocationId("a1"), at=9.0, reason="done", explanation="all programs ended")
    store.start(AllocationId("a1"), at=10.0)
    store.release(AllocationId("a1"), at=11.0, reason="other", explanation="")
    ended = store.allocations(ended=True)[0]
    assert (ended.state, ended.ended_at, ended.reason) == (AllocationState.RELEASED, 9.0, "done")
    assert ended.started_at == 0.0
    assert store.allocations() == []


def test_release_repeated_after_a_crash_is_metered_once(store: Store) -> None:
    store.grant(_record())
    for _ in range(2):
        store.release(AllocationId("a1"), at=20.0, reason="done", explanation="", usage=[_usage()])
    store.add_usage([_usage(), _usage(from_s=20.0)])
    assert store.usage(AllocationId("a1")) == [_usage(), _usage(from_s=20.0)]
    assert store.usage(AllocationId("b")) == []


def test_the_newest_are_kept_when_there_are_more_than_asked_for(store: Store) -> None:
    for number in range(5):
        store.grant(_record(f"a{number}", created_at=float(number)))
    assert [r.id for r in store.allocations(ended=True, limit=3)] == ["a2", "a3", "a4"]


def test_queues_are_replaced_and_deleted_by_name(store: Store) -> None:
    store.administration.put_queue(QueueRecord(name="prod", deserved=4.0))
    store.administration.put_queue(QueueRecord(name="prod", parent="root", deserved=2.5, limit=3.5, weight=2.0))
    assert store.administration.queues() == [
        QueueRecord(name="prod", parent="root", deserved=2.5, limit=3.5, weight=2.0)
    ]
    assert store.administration.delete_queue("prod")
    assert not store.administration.delete_queue("prod")
    assert store.administration.queues() == []


def test_events_are_read_from_the_readers_position(store: Store) -> None:
    for number in range(5):
        store.add_events([{"at": float(number), "kind": f"k{number}", "message": "m" * 5000}])
    first = store.events(limit=2)
    rest = store.events(after=first[-1].id)
    assert [e.kind for e in first + rest] == ["k0", "k1", "k2", "k3", "k4"]
    assert all(len(in_full(e.message)) == 4096 for e in rest)


def test_a_database_of_a_newer_program_is_refused_with_both_numbers(url: str) -> None:
    open_store(url).close()
    engine = _engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE meta SET value = '99' WHERE key = 'schema_version'"))
    engine.dispose()
    with pytest.raises(CalabashError) as caught:
        open_store(url)
    assert caught.value.reason is Reason.STORE_NEWER
    known = f"has schema 99; calabash {calabash.__version__} supports schema 1 to {tables.SCHEMA_VERSION}"
    assert caught.value.message.endswith(known)
    assert caught.value.hint.startswith("use the newer calabash that wrote it")


def test_the_migrations_end_at_the_tables_that_the_program_uses(url: str, store: Store) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    engine = _engine(url)
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), tables.metadata)
        version = connection.execute(sa.text("SELECT value FROM meta WHERE key = 'schema_version'")).scalar_one()
    engine.dispose()
    assert differences == []
    assert int(version) == tables.SCHEMA_VERSION


def test_a_new_database_is_what_the_migrations_make_of_an_empty_one(url: str) -> None:
    database = Database(url)
    try:
        database.migrate()
        migrated = _schema(database)
        with database.transaction() as connection:
            for name in migrated:
                connection.execute(sa.text(f'DROP TABLE "{name}"'))
        database.bring_up_to_date()
        assert _schema(database) == migrated
        assert database.schema_version() == tables.SCHEMA_VERSION
    finally:
        database.close()


def _schema(database: Database) -> dict[str, object]:
    """Return columns, keys, indexes and constraints of every table, and the rows of a new database."""
    with database.transaction() as connection:
        found = sa.inspect(connection)
        return {
            name: (
                {c["name"]: (str(c["type"]), c["nullable"], c.get("default")) for c in found.get_columns(name)},
                found.get_pk_constraint(name),
                sorted((str(i["name"]), tuple(i["column_names"]), bool(i["unique"])) for i in found.get_indexes(name)),
                sorted((str(u["name"]), tuple(u["column_names"])) for u in found.get_unique_constraints(name)),
                [tuple(row) for row in connection.execute(sa.text(f'SELECT * FROM "{name}"'))],
            )
            for name in sorted(found.get_table_names())
        }


def test_loading_the_pool_and_making_its_database_takes_no_migrations(tmp_path: Path) -> None:
    program = (
        "import sys, calabash.pool.daemon\n"
        "from calabash.adapters.store import open_store\n"
        "open_store('sqlite:///' + sys.argv[1]).close()\n"
        "slow = {'alembic', 'scipy', 'matplotlib', 'sqlalchemy.dialects.postgresql'}\n"
        "print(sorted(slow & set(sys.modules)))\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "pool.db")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_many_threads_journal_at_once_and_lose_nothing(store: Store) -> None:
    errors: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for number in range(10):
                name = AllocationId(f"{worker}-{number}")
                store.grant(_record(name))
                store.release(name, at=1.0, reason="done", explanation="", usage=[_usage(name)])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store.allocations(ended=True)) == 40
    assert len(store.usage()) == 40


def test_a_grant_survives_the_death_of_its_writer(url: str) -> None:
    open_store(url).close()
    program = (
        "import os, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "import test_store as t\n"
        "s = t.open_store(sys.argv[1])\n"
        "s.grant(t._record('killed'))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, url, str(Path(__file__).parent)], check=False, timeout=60)
    reader = open_store(url)
    assert [r.id for r in reader.allocations()] == ["killed"]
    reader.close()


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(CalabashError) as caught:
        open_store("postgresql://ann:secret@127.0.0.1:1/pool")
    assert caught.value.reason is Reason.STORE_UNAVAILABLE
    assert "secret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


@pytest.mark.parametrize("bad", ["", "nonsense", "mysql://x/y", "sqlite:////no/such/directory/pool.db"])
def test_url_without_a_server_is_refused_with_a_hint(bad: str) -> None:
    with pytest.raises(CalabashError) as caught:
        open_store(bad)
    assert caught.value.hint


def test_a_password_is_never_shown() -> None:
    assert "secret" not in public_url("postgresql://ann:secret@db/pool")
    assert "secret" not in public_url("::not a url secret")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pool.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(CalabashError) as caught:
        open_store(f"sqlite:///{tmp_path}/pool.db")
    assert caught.value.reason is Reason.STORE_DAMAGED


def test_a_commit_on_sqlite_is_synced_to_the_disk(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/pool.db")
    with store._database.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    store.close()


def test_full_disk_is_refused_with_a_reason_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    store = open_store(f"sqlite:///{path}")
    store.grant(_record("before"))
    with store._database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    # The engine's pool hands the same connection out again, so the ceiling holds for the next grant.
    raw = store._database.engine.raw_connection()
    raw.cursor().execute(f"PRAGMA max_page_count={pages}")
    raw.close()
    with pytest.raises(CalabashError) as caught:  # noqa: PT012 - the one that no longer fits is not known beforehand
        for number in range(200):
            store.grant(_record(f"after{number}", command=("x" * 4000,)))
    assert caught.value.reason is Reason.DISK_FULL
    store.close()
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    reader = open_store(f"sqlite:///{path}")
    assert reader.allocations()[0].id == "before"
    reader.close()


def test_database_of_the_first_version_is_upgraded_with_its_content(url: str) -> None:
    old = Database(url)
    old.migrate("0001")
    assert old.schema_version() == 1
    with old.transaction() as connection:
        connection.execute(
            sa.text("INSERT INTO queues (name, parent, deserved, \"limit\", weight) VALUES ('prod', '', 2, NULL, 1)")
        )
        for number, name in enumerate(("a1", "a2", "a1")):
            connection.execute(
                sa.text(
                    "INSERT INTO usage (allocation, device, tenant, queue, from_s, to_s, memory_mib, core_percent, "
                    f"allocated_gpu_s, used_gpu_s, memory_mib_s) VALUES ('{name}', 'd', 't', 'q', {number}, {number + 1}, "
                    "1, 100, 1, 1, 1)"
                )
            )
    old.close()
    store = open_store(url)
    assert [(u.allocation, u.sequence) for u in store.usage()] == [("a1", 0), ("a2", 0), ("a1", 1)]
    so_far = store.usage_sums.all_so_far([_record("a1")]).get(AllocationId("a1"))
    assert so_far is not None
    assert (so_far.until_s, so_far.next_sequence, so_far.used_gpu_s) == (3.0, 2, {0: 2.0})
    assert store.administration.queues() == [QueueRecord(name="prod", deserved=2.0)]
    store.administration.put_queue(QueueRecord(name="prod", deserved=2.0, users=("ann",), groups=("lab",)))
    store.close()
    again = open_store(url)
    assert again.administration.queues() == [QueueRecord(name="prod", deserved=2.0, users=("ann",), groups=("lab",))]
    again.close()


def test_ended_allocations_are_trimmed_by_age_and_count_and_held_ones_stay(store: Store) -> None:
    for number in range(10):
        name = AllocationId(f"a{number}")
        store.grant(_record(name, created_at=float(number)))
        store.add_usage([_usage(name, from_s=float(number))])
        store.add_events([{"at": float(number), "kind": "granted", "allocation": name}])
        if number:
            store.release(name, at=1000.0 + number, reason="done", explanation="")
    kept = Retention(allocations=6, allocation_days=1, usage=100, usage_days=1, events=3, event_days=1000)
    while store.trim(kept, now_s=1005.5 + 86_400):
        pass
    ended = [r.id for r in store.allocations(ended=True)]
    assert ended == ["a0", "a6", "a7", "a8", "a9"], "five are too old; a0 is held"
    assert [u.allocation for u in store.usage()] == ["a0"], "the intervals of what is held stay"
    assert [e.allocation for e in store.events()] == ["a7", "a8", "a9"]
    assert store.trim(Retention(), now_s=1005.5) == 0


def test_a_long_past_is_trimmed_in_small_batches(store: Store) -> None:
    store.add_events([{"at": float(n), "kind": "k"} for n in range(450)])
    kept = Retention(events=10, event_days=1000)
    assert [store.trim(kept, now_s=1.0) for _ in range(4)] == [200, 200, 40, 0]


def test_ended_allocations_are_read_page_by_page_newest_first(store: Store) -> None:
    for number in range(5):
        store.grant(_record(f"a{number}"))
        store.release(AllocationId(f"a{number}"), at=float(number // 2), reason="done", explanation="")
    store.grant(_record("held"))
    pages, after = [], AllocationId("")
    while found := store.ended_before(after, limit=2):
        pages.append([r.id for r in found])
        after = found[-1].id
    assert pages == [["a4", "a3"], ["a2", "a1"], ["a0"]]


def test_the_files_of_a_database_are_their_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    path.touch(mode=0o666)
    path.chmod(0o666)
    store = open_store(f"sqlite:///{path}")
    store.grant(_record())
    found = {p.name: oct(p.stat().st_mode & 0o777) for p in tmp_path.iterdir()}
    assert found == dict.fromkeys(("pool.db", "pool.db-wal", "pool.db-shm"), "0o600")
    store.close()
