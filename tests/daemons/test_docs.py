"""Commands on the pages for new users: the tests run them as they are written, with the pauses of a person.

A person reads between commands, for a minute at least. Programs that a page starts in the background must still run
then. Here a pause is shorter, and all durations on the page (how long programs run, how long requests wait) are shorter
by the same factor, so that a page that works at one pace works at the other. ``CALABASH_DOCS_PAUSE_S=60`` runs the
pages with the pauses of a person.

Each page has a home of its own, which it removes: the tests fail for a page that uses the home of the machine's pool,
or leaves a process or a file.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PERSON_S = 60.0  # between two commands
PAUSE_S = float(os.environ.get("CALABASH_DOCS_PAUSE_S", "2"))
RUN_S = 240.0  # for the commands of a page
# The tree is set up already. Pages that need a downloaded trace or a cluster are not tested here.
_ELSEWHERE = re.compile(r"^(git clone|make |nvidia-ctk |kubectl |calabash sim openb|    --placement pgb,fgd --seeds)")
_DURATION = re.compile(r"(--(?:seconds|wait|keep|grace) )([0-9.]+)([smhd]?)\b")
_BACKGROUND = re.compile(r"[^&]&[ ]*(#.*)?$", re.MULTILINE)
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
# Pages with the commands that must fail, and their exit codes.
PAGES: dict[str, dict[str, int]] = {
    "README.md": {},
    "docs/tutorial/first-slice.md": {"calabash run --memory 200GiB -- true": 5},
    "docs/tutorial/three-teams.md": {},
    "docs/tutorial/first-network.md": {
        "calabash net diff -f examples/networks/web.yaml": 1,
        "calabash net subnet create red/b --cidr 10.0.1.128/25": 1,
        "calabash net vpc delete red": 1,
    },
    "docs/how-to/test-your-platform-without-gpus.md": {},
    "docs/how-to/back-up-the-pool.md": {},
    "docs/how-to/find-out-why-a-request-waits.md": {},
    "docs/how-to/handle-failed-cards.md": {},
    "docs/how-to/mig-layouts.md": {},
    "docs/how-to/mps.md": {},
    "docs/how-to/passthrough.md": {},
    "docs/how-to/send-invoices.md": {"calabash invoice issue $(date +%Y-%m) --tenant $(id -un)": 1},
    "docs/how-to/spill.md": {},
    "docs/how-to/time-slices.md": {},
    "docs/how-to/tenants.md": {},
    "docs/how-to/tenant-networks.md": {"calabash net diff -f examples/networks/web.yaml": 1},
}
# Output that must appear when a page is followed at the pace of a person.
SEEN: dict[str, list[str]] = {
    "docs/tutorial/first-slice.md": ["best-effort 4GiB", "6 devices", "lost", "30%", "50%"],
    "docs/tutorial/three-teams.md": ["vision/train", "guaranteed", "commitment", "/login#"],
    "docs/how-to/find-out-why-a-request-waits.md": ["pending (no_memory)", "would fit if memory"],
    "docs/how-to/mig-layouts.md": ["1g.10gb", "1c.3g.40gb", "memory_total_bytes"],
    "docs/how-to/mps.md": ["50%", "30%", "mps"],
    "docs/how-to/spill.md": ["17GiB (13GiB)", "memory_total_bytes"],
    "docs/how-to/time-slices.md": ["timeslice", "memory_total_bytes"],
}


def script(page: str) -> str:
    """Return all blocks of commands of a page, in order."""
    found: list[str] = []
    fence = ""
    for line in (ROOT / page).read_text().splitlines():
        if line.startswith("```"):
            fence = "" if fence else line
        elif fence == "```" and not _ELSEWHERE.match(line):  # a fence with a language is for reading
            found.append(line)
    return "\n".join(found)


def commands(text: str) -> Iterator[str]:
    """Yield each command of a page: one line, or all lines of a shell loop."""
    typed: list[str] = []
    for line in text.splitlines():
        typed.append(line)
        so_far = "\n".join(typed)
        parsed = subprocess.run(["bash", "-nc", so_far], capture_output=True, check=False)
        if parsed.returncode == 0 and not line.endswith("\\"):
            if so_far.strip() and not so_far.lstrip().startswith("#"):
                yield so_far
            typed = []
    assert not typed, typed


def paced(text: str) -> str:
    """Return the commands with pauses, and with all durations shortened by the ratio of the pauses to a person's.

    The first pause follows the first command that leaves a process running; before, nothing depends on time.
    """
    factor = PAUSE_S / PERSON_S

    def shorter(found: re.Match[str]) -> str:
        seconds = float(found[2]) * _UNIT_S[found[3]]
        unit = "" if found[1] == "--seconds " else "s"
        return f"{found[1]}{max(0.2, seconds * factor):g}{unit}"

    typed: list[str] = []
    running = False
    for command in commands(text):
        running = running or _BACKGROUND.search(command) is not None
        typed += [_DURATION.sub(shorter, command), *(["pause"] if running else [])]
    return "\n".join(typed) + "\n"


def checkout(place: Path) -> Path:
    """Create a directory with links to all files of this repository, but with a ``build`` directory of its own."""
    tree = place / "c"
    (tree / "build").mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.name not in {"build", ".git"}:
            (tree / entry.name).symlink_to(entry)
    return tree


def free_port() -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def processes_in(place: Path) -> list[str]:
    """Return the command lines of processes whose environment or working directory is below a place."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            below = str(place).encode() in (process / "environ").read_bytes()
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if below and words and process.name != str(os.getpid()):
            found.append(words)
    return found


@pytest.mark.timeout(RUN_S + 80 * PAUSE_S)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_does_what_the_page_says(page: str, tmp_path: Path) -> None:
    failed, output = tmp_path / "failed", tmp_path / "output"
    trap = f"""trap 'echo "$? $BASH_COMMAND" >>{failed}' ERR\npause() {{ sleep {PAUSE_S:g}; }}\n"""
    with tempfile.TemporaryDirectory(prefix="d") as short:  # sockets have short names
        place = Path(short)
        tree, elsewhere = checkout(place), place / "elsewhere"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("CALABASH_", "LD_"))}
        environment |= {
            "HOME": str(place),
            "CALABASH_HOME": str(elsewhere),
            "CALABASH_CONSOLE": f"127.0.0.1:{free_port()}",  # pages run at the same time
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        try:
            with output.open("wb") as sink:
                subprocess.run(
                    ["bash", "-uEc", trap + paced(script(page))],
                    cwd=tree,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    timeout=RUN_S + 60 * PAUSE_S,
                    check=False,
                )
            left = processes_in(place)
            files = sorted(p.name for p in (tree / "build").iterdir())
            used_the_machines_home = elsewhere.exists()
        finally:
            for home in (elsewhere, *(tree / "build").iterdir()):
                if home.exists():
                    down = [sys.executable, "-m", "calabash.cli.main", "down", "--force"]
                    ending = environment | {"CALABASH_HOME": str(home)}
                    subprocess.run(down, env=ending, capture_output=True, timeout=60, check=False)
    said = output.read_text(errors="replace")
    wrong = failed.read_text().splitlines() if failed.exists() else []
    assert wrong == [f"{code} {command}" for command, code in PAGES[page].items()], said
    assert "Traceback" not in said
    assert "not found" not in said
    missing = [text for text in SEEN.get(page, []) if text not in said]
    assert not missing, said
    assert not used_the_machines_home, "the page uses the home that it found"
    assert not files, "the page leaves files"
    assert not left, "the page leaves processes"


def test_a_page_that_is_followed_is_not_empty() -> None:
    assert all(script(page).count("calabash ") >= 2 for page in PAGES)


def test_pages_show_programs_that_do_something() -> None:
    """A page runs ``true`` on a slice only for requests that are refused or wait: it ends at once and shows nothing."""
    for page, refused in PAGES.items():
        for command in commands(script(page)):
            if re.search(r"calabash run .*-- true\b", command):
                assert command in refused or "--wait" in command, (page, command)


def test_pauses_shorten_what_runs_and_waits_by_the_same_factor() -> None:
    text = (
        "calabash ps && true\ncalabash run --wait 1h -- python3 examples/tenant.py --seconds 30 &    # an hour\n"
        "for n in 1 2; do\n  sleep 0\ndone\n"
    )
    factor = PAUSE_S / PERSON_S
    before, run, pause, loop, *_, last = paced(text).splitlines()
    assert before == "calabash ps && true"
    assert f"--wait {3600 * factor:g}s" in run
    assert f"--seconds {30 * factor:g} &" in run
    assert (pause, last) == ("pause", "pause")
    assert loop.startswith("for n")
