"""Unusual and wrong input on the command line and in files: it works, or fails with an error line and a hint."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.terminal import Terminal, own_home
from tests.daemons.world import NATIVE, World, until

from calabash.model.errors import CalabashError

SLICE = ("--memory", "1GiB", "--cores", "10")
NOT_TEXT = os.fsdecode(b"caf\xe9")


@pytest.fixture
def terminal(world: World, tmp_path: Path) -> Iterator[Terminal]:
    """Yield a terminal at the shared pool of two A100-40GB."""
    made = Terminal(world.home, tmp_path)
    yield made
    made.close()
    until(lambda: not world.allocations(), what="the slices of what was killed to come back")


@pytest.fixture
def own_terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Yield a terminal with a home of its own and a simulated node of one card; no pool yet."""
    with own_home(tmp_path) as made:
        yield made


def shell(terminal: Terminal, redirection: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command under a shell that closes or redirects its descriptors."""
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirection}', "bash", *terminal.words(*words)],
        env=terminal.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# -- arguments ---------------------------------------------------------------------------------------------------


def test_a_program_without_a_name_is_refused_before_a_slice_is_taken(terminal: Terminal, world: World) -> None:
    world.forget_events()
    assert "empty" in terminal.refused(2, "run", *SLICE, "--", "")
    assert world.events("allocated") == world.events("granted") == []


@pytest.mark.parametrize("identifier", ["é", NOT_TEXT, "a\n", "a b", "a/b?c#d", "..", "", "%2e%2e", "?force=1"])
@pytest.mark.parametrize("command", ["release", "why"])
def test_an_identifier_that_nobody_has_is_not_found_whatever_its_characters(
    terminal: Terminal, command: str, identifier: str
) -> None:
    assert "no allocation" in terminal.refused(3, command, "--", identifier)


@pytest.mark.parametrize("name", ["é", NOT_TEXT, "a\n", "a b", "?x", "", "a%2Fb"])
def test_a_queue_name_that_is_none_is_refused(terminal: Terminal, name: str) -> None:
    terminal.refused(2, "queue", "create", "--", name)
    assert terminal("queue", "list", "-o", "name").stdout == "default\n"


def test_a_queue_whose_name_has_a_slash_is_made_and_goes(terminal: Terminal) -> None:
    terminal("queue", "create", "vision/night@a-b_c.d")
    assert "vision/night@a-b_c.d" in terminal("queue", "list", "-o", "name").stdout.splitlines()
    terminal("queue", "delete", "vision/night@a-b_c.d")
    assert terminal("queue", "list", "-o", "name").stdout == "default\n"


@pytest.mark.parametrize("flag", ["--tenant", "--queue", "--gang", "--mode", "--model"])
def test_a_name_that_is_no_text_is_refused_with_its_option(terminal: Terminal, flag: str) -> None:
    assert flag in terminal.refused(2, "run", flag, NOT_TEXT, "--", "true")


@pytest.mark.parametrize("flag", ["--tenant", "--queue", "--gang"])
def test_a_name_that_ends_in_a_newline_is_refused(terminal: Terminal, world: World, flag: str) -> None:
    terminal.refused(2, "run", flag, "vision\n", "--", "true")
    field = flag.removeprefix("--")
    with pytest.raises(CalabashError, match=field):
        world.client.post("/v1/allocations", {field: "vision\n"})


def test_arguments_that_are_no_text_reach_the_program_as_they_are(terminal: Terminal) -> None:
    done = subprocess.run(
        [*terminal.words("run", *SLICE, "--", "printf", "%s"), b"caf\xe9"],
        env=terminal.environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"caf\xe9", b"")


def test_a_long_command_line_is_no_reason_to_refuse(terminal: Terminal) -> None:
    done = terminal("run", *SLICE, "--", "sh", "-c", 'echo "${#1}"', "sh", "x" * 120_000)
    assert done.stdout == "120000\n"


def test_memory_without_a_unit_is_asked_for_one(terminal: Terminal) -> None:
    assert "8GiB" in terminal.refused(2, "run", "--memory", "8", "--", "true")


def test_a_slice_that_is_smaller_than_a_context_is_given_with_a_warning_that_has_the_number(
    terminal: Terminal, world: World
) -> None:
    done = terminal("run", "--memory", "100MiB", "--cores", "10", "--", "echo", "goes on")
    assert done.stdout == "goes on\n"
    (line,) = done.stderr.splitlines()
    found = re.search(r"^warning: the slice of 100MiB is smaller than an empty CUDA context on .*, (\d+)MiB:", line)
    assert found, line
    assert 100 < int(found[1]) < 1024
    assert terminal("run", "--memory", f"{found[1]}MiB", "--cores", "10", "--", "true").stderr == ""


# -- descriptors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("redirection", "wanted"), [("<&-", [1, 2]), (">&-", [0, 2]), ("2>&-", [0, 1]), ("<&- >&- 2>&-", [])]
)
def test_a_program_gets_closed_the_descriptors_that_the_caller_closed(
    terminal: Terminal, tmp_path: Path, redirection: str, wanted: list[int]
) -> None:
    # sh does not open what it finds closed, as an interpreter may
    script = f"cd /proc/$$/fd && for n in 0 1 2; do [ -e $n ] && echo $n >>{tmp_path}/seen; done; touch {tmp_path}/seen"
    done = shell(terminal, redirection, "run", *SLICE, "--", "sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert [int(line) for line in (tmp_path / "seen").read_text().split()] == wanted


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "words", [("ps",), ("smi", "-o", "json"), ("status",), ("--help",), ("top", "--once"), ("doctor",)]
)
def test_commands_do_their_work_with_descriptors_closed(
    terminal: Terminal, redirection: str, words: tuple[str, ...]
) -> None:
    done = shell(terminal, redirection, *words)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pool_is_started_and_stopped_with_descriptors_closed(own_terminal: Terminal) -> None:
    assert shell(own_terminal, "<&- >&- 2>&-", "up", "--sim", "lab").returncode == 0
    assert own_terminal("run", *SLICE, "--", "echo", "yes").stdout == "yes\n"
    assert shell(own_terminal, "<&- >&- 2>&-", "down").returncode == 0


@pytest.mark.parametrize("words", [("ps",), ("status", "-o", "yaml"), ("--help",), ("--version",), ("queue", "--help")])
def test_output_that_cannot_be_written_is_told_in_a_line_and_a_hint(terminal: Terminal, words: tuple[str, ...]) -> None:
    done = shell(terminal, ">/dev/full", *words)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: No space left on device",
        "hint: free disk space, or choose another path",
    ]


# -- home of the pool --------------------------------------------------------------------------------------------


def test_a_user_without_a_home_is_told_to_name_a_place(tmp_path: Path) -> None:
    script = (
        "import os, sys\nsys.argv = ['calabash', *sys.argv[1:]]\nfrom calabash.cli.main import main\n"
        "os.geteuid = lambda: 4242\nos.path.expanduser = lambda path: path\nmain()"
    )
    for words in (("ps",), ("up",), ("run", "--", "true"), ("doctor",), ("sim", "list")):
        done = subprocess.run(
            [sys.executable, "-c", script, *words], env={}, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 2, done
        assert done.stderr.splitlines()[0].startswith("error: the home directory of this user is not known, and ~")
        assert "CALABASH_HOME" in done.stderr.splitlines()[1]


def test_the_home_of_a_user_who_does_not_exist_is_not_guessed(tmp_path: Path) -> None:
    lost = Terminal(tmp_path, tmp_path)
    lost.environment["CALABASH_HOME"] = "~no-such-user/pool"
    for words in (("ps",), ("up",), ("run", "--", "true")):
        assert "~no-such-user" in lost.refused(2, *words)


# -- Ctrl-C ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "module"),
    [(("ps",), "click"), (("run", "--", "true"), "json"), (("top",), "json"), (("sim", "--help"), "click")],
)
def test_ctrl_c_while_the_command_still_starts_is_one_word(tmp_path: Path, words: tuple[str, ...], module: str) -> None:
    """The signal is sent while the command imports its first module, which the test has replaced for this."""
    (tmp_path / f"{module}.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    done = subprocess.run(
        ["env", "--default-signal=INT", sys.executable, "-m", "calabash.cli.main", *words],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "CALABASH_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "\ninterrupted\n")


# -- long lists --------------------------------------------------------------------------------------------------


def test_a_list_that_comes_in_pages_is_whole(terminal: Terminal, world: World) -> None:
    for _ in range(3):
        terminal.start_holder(*SLICE)
    whole = [a["id"] for a in world.client.get("/v1/allocations")["items"]]
    assert world.client.get("/v1/allocations?limit=1")["next"]
    assert [a["id"] for a in world.client.rows("/v1/allocations?limit=1")] == whole
    assert len(whole) == 3


# -- correct messages --------------------------------------------------------------------------------------------


def test_the_node_of_a_running_pool_is_not_destroyed(own_terminal: Terminal) -> None:
    own_terminal("sim", "create", "spare", "--gpus", "1xT4")
    own_terminal("up", "--sim", "lab")
    for options in ((), ("--force",)):
        said = own_terminal.refused(1, "sim", "destroy", "lab", *options)
        assert "calabash down" in said
    assert own_terminal.items("smi")[0]["health"] == "healthy"
    own_terminal("sim", "destroy", "spare")
    own_terminal("down")
    own_terminal("sim", "destroy", "lab")
    assert own_terminal.items("sim", "list") == []


def test_a_second_up_says_which_node_the_pool_serves(own_terminal: Terminal) -> None:
    own_terminal("sim", "create", "other", "--gpus", "1xT4")
    own_terminal("up", "--sim", "lab")
    assert "simulated node lab" in own_terminal.refused(1, "up", "--sim", "other")


def test_doctor_advises_the_step_that_is_next(own_terminal: Terminal) -> None:
    if not Path("/dev/nvidiactl").exists():
        assert "calabash up --sim lab" in own_terminal("doctor").stderr
    own_terminal("up", "--sim", "lab")
    done = own_terminal("doctor")
    assert "sim create" not in done.stdout + done.stderr
    assert "the pool serves simulated node lab" in done.stdout


def test_smi_tells_of_a_fault_and_of_its_end_as_soon_as_the_command_is_back(own_terminal: Terminal) -> None:
    own_terminal("up", "--sim", "lab")
    own_terminal("sim", "inject", "lab", "lost")
    assert own_terminal.items("smi")[0]["health"] != "healthy"
    own_terminal("sim", "inject", "lab", "recover")
    assert own_terminal.items("smi")[0]["health"] == "healthy"


def test_a_card_that_fails_twice_is_held_back_and_the_command_says_where_to_look(own_terminal: Terminal) -> None:
    own_terminal("up", "--sim", "lab")
    for _ in range(2):
        own_terminal("sim", "inject", "lab", "lost")
        said = own_terminal("sim", "inject", "lab", "recover")
    assert "calabash device show" in said.stdout + said.stderr
    assert own_terminal.items("smi")[0]["health"] == "recovering"


def test_a_node_shows_how_much_was_not_served_and_lists_it_only_when_asked(own_terminal: Terminal) -> None:
    call = (
        "import ctypes\ncuda = ctypes.CDLL('libcuda.so.1')\ncuda.cuInit(0)\n"
        "for name in ('cuImportExternalMemory', 'cuMulticastCreate', 'cuMulticastCreate'):\n    getattr(cuda, name)(*[0] * 8)\n"
    )
    state = own_terminal.home / "sim" / "lab" / "node.state"
    environment = own_terminal.environment | {"CALABASH_SIM": str(state), "LD_LIBRARY_PATH": str(NATIVE / "simgpu")}
    subprocess.run([sys.executable, "-c", call], env=environment, check=True, timeout=60)
    short, wide = own_terminal("sim", "show", "lab"), own_terminal("sim", "show", "lab", "-o", "wide")
    assert short.stderr.splitlines() == ["missing functions: 2 names, looked up 3 times; -o wide lists them"]
    assert "cuMulticastCreate  2" in wide.stderr
    assert {u["name"]: u["count"] for u in own_terminal.json("sim", "show", "lab")["unserved"]}[
        "cuImportExternalMemory"
    ] == 1
