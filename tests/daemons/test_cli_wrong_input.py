"""Wrong input is answered with one line, the accepted form and a hint, before anything is started."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.daemons.terminal import Terminal, own_pool

from calabash.cli.commands import cli
from calabash.model.errors import CalabashError, Reason
from calabash.platform.home import directory as homes

WHOLE = ("--memory", "14GiB", "--cores", "100")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """Yield a terminal at a pool of its own with one T4."""
    with own_pool(tmp_path_factory.mktemp("wrong"), "1xT4") as made:
        yield made


@pytest.mark.parametrize(
    ("words", "code", "wrong", "hint"),
    [
        (("invoice", "draft", "nov"), 2, "'nov' is not a month", "2026-11"),
        (("invoice", "list", "--month", "nov"), 2, "month 'nov' is not usable", "2026-11"),
        (("tenant", "create", "t", "--users", "ann,a!b"), 2, "users 'a!b' is not usable", "letters, digits"),
        (("tenant", "create", "t", "--modes", "vgpuu"), 2, "'vgpuu' is not known", "vgpu"),
        (("tenant", "quota", "--tenant", "nosuch"), 3, "no tenant nosuch", "calabash tenant list"),
        (("notify", "show", "nosuch"), 3, "no notification nosuch", "calabash notify list"),
        (("run", "--model", "H100", "--", "true"), 5, "no device is of model H100", "there are Tesla T4 (1)"),
        (("pss",), 2, "no such command 'pss'", "did you mean ps"),
        (("tennant", "list"), 2, "no such command 'tennant'", "did you mean tenant"),
        (("queue", "lst"), 2, "no such command 'lst'", "did you mean list"),
        (("audit", "list", "--after", "x"), 2, "'x' is not a whole number", "calabash audit list"),
        (("queue", "create"), 2, "missing argument 'NAME'", "write calabash queue create [OPTIONS] NAME"),
        (("ps", "--al"), 2, "no such option '--al'", "did you mean --all"),
        (
            ("invoice", "tariff", "apply", "/nosuch"),
            3,
            "/nosuch: No such file or directory",
            "check the path",
        ),
        (("net", "apply", "-f", "/nosuch"), 3, "/nosuch cannot be read: No such file", "check the path"),
        (
            ("net", "certificate", "put", "a/b", "--cert", "/nosuch", "--key", "/nosuch"),
            3,
            "/nosuch cannot be read",
            "the path",
        ),
        (("backup", "create", "/nosuch/x"), 3, "/nosuch/x cannot be written: No such file", "a directory that exists"),
        (("sim", "scenario", "/nosuch"), 3, "/nosuch: cannot be read: No such file", "name a text file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_answered_with_what_is_wrong_and_what_can_be_written(
    pool: Terminal, words: tuple[str, ...], code: int, wrong: str, hint: str
) -> None:
    error, advice = pool.refused(code, *words).splitlines()
    assert wrong in error
    assert hint in advice
    for internal in ("regex", "Errno", "\\Z", "`$."):
        assert internal not in error + advice


def test_pool_that_is_not_up_is_told_without_an_error_number(tmp_path: Path) -> None:
    said = Terminal(tmp_path / "none", tmp_path).refused(1, "ps")
    assert "Errno" not in said
    assert "no pool answers" in said


@pytest.mark.parametrize(
    ("options", "code", "hint"),
    [
        (("--console", "7433"), 2, "127.0.0.1:7433"),
        (("--console", "localhost:99999"), 2, "HOST:PORT"),
        (("--sim", "lba"), 3, "there are: lab"),
    ],
)
def test_options_of_a_pool_are_checked_before_it_is_started(
    tmp_path: Path, options: tuple[str, ...], code: int, hint: str
) -> None:
    own = Terminal(tmp_path / "h", tmp_path)
    own("sim", "create", "lab", "--gpus", "1xT4")
    begun = time.monotonic()
    said = (
        own.refused(code, "up", *options) if "--sim" in options else own.refused(code, "up", "--sim", "lab", *options)
    )
    assert hint in said
    assert not (own.home / "pool.log").exists(), f"a daemon was started, {time.monotonic() - begun:.1f} s"


def test_full_disk_is_told_before_a_pool_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "free_bytes", lambda _path: 1 << 20)
    monkeypatch.setattr(
        "calabash.cli.pool.lifecycle.start_module", lambda *_, **__: pytest.fail("a daemon was started")
    )
    done = CliRunner().invoke(cli, ["up"], env={"CALABASH_HOME": str(tmp_path / "h"), "CALABASH_CONSOLE": "off"})
    assert isinstance(done.exception, CalabashError)
    assert done.exception.reason is Reason.DISK_FULL
    assert "1 MiB free, at least 16 MiB" in done.exception.message


def test_pool_that_ended_without_a_word_on_a_full_disk_is_said_to_have_ended_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calabash.cli.pool import lifecycle as commands

    log = tmp_path / "pool.log"
    log.write_text("")
    assert "ended with exit code 1" in commands._failure(log, 0, 1).message
    monkeypatch.setattr(homes, "free_bytes", lambda _path: 0)
    with pytest.raises(CalabashError, match="0 MiB free"):
        commands._failure(log, 0, 1)


def test_why_explains_all_that_is_named_and_without_a_name_all_that_waits(pool: Terminal) -> None:
    assert pool("why").stdout == "no request waits\n"
    assert pool.json("why")["items"] == []
    holder = pool.start_holder(*WHOLE)
    waiting = [pool.start("run", *WHOLE, "--wait", "60s", "--", "true") for _ in range(2)]

    def pending() -> list[str]:
        return [a["id"] for a in pool.items("ps") if a["state"] == "pending"]

    deadline = time.monotonic() + 60
    while len(ids := pending()) < 2:
        assert time.monotonic() < deadline
    assert all(f"{name}: pending" in pool("why").stdout for name in ids)
    assert all(f"{name}: pending" in pool("why", *ids).stdout for name in ids)
    assert len(pool.json("why", *ids)["items"]) == 2
    assert pool.json("why", ids[0])["kind"] == "Explanation"
    pool.refused(3, "why", ids[0], "nosuch")
    holder.finish()
    assert [job.code() for job in waiting] == [0, 0]


def test_commands_that_make_something_print_it_as_a_document(pool: Terminal) -> None:
    assert pool.json("queue", "create", "q", "--limit", "1")["kind"] == "Queue"
    assert pool.json("queue", "set", "q", "--limit", "0.5")["limit"] == 0.5
    assert pool.json("tenant", "create", "docs", "--limit", "1")["limit"] == 1.0
    assert pool.yaml("tenant", "project", "create", "docs", "part")["queue"] == "docs/part"
    assert pool.json("tenant", "set", "docs", "--limit", "0.5")["limit"] == 0.5
    assert pool.json("user", "create", "writer", "--email", "w@example.org")["email"] == "w@example.org"
    assert pool.json("audit", "verify")["whole"] is True
    assert pool("queue", "set", "q", "--weight", "2", "-o", "name").stdout == "q\n"
