"""Pytest plug-in: keep the evidence of each failed test in ``build/failed/<test>/``, and name the directories at the end.

A directory holds ``report.txt`` (the failure, captured output, the machine's load, the environment, the seed of a property
test) and a subdirectory for each phase that failed, with copies of the files of the daemons that the test used. The files are

* those of every fixture value with a method ``evidence``, and of such objects inside a fixture value (``evidence_sources``);
* logs, journals and settings below the test's ``tmp_path``.

The files are copied before fixtures are torn down. An object that is closed before the test has failed, as in a ``with``
statement, calls ``rescue`` first. ``evidence_files`` has the bounds of a copy; ``TESTS_MAX`` tests are kept per run.

Under pytest-xdist workers copy and the controller prints. A worker leaves a note with the places of the files before each
test, from which the controller keeps the evidence of a test that crashed its worker. The controller removes the evidence of
earlier runs at the start, except while another run of the same tree goes on, and with ``CALABASH_FAILED_KEEP=1``.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.evidence_files import TEST_BYTES_MAX, FileCopier, may_be_secret, size_of
from tests.evidence_sources import Sources, rescuers, sources_of

TESTS_MAX = 50
KEEP = "CALABASH_FAILED_KEEP"
PLUGIN = "calabash-evidence"
_SLUG_MAX = 120
_SECTION_MAX = 1 << 20
_ATTRIBUTE = "calabash_evidence"
_RUN = "calabash_evidence_run"

# -- the directories of a run ------------------------------------------------------------------------------------------


def slug_of(node_id: str) -> str:
    """Return a directory name for a test: its node ID without special characters, and a checksum of the node ID."""
    checksum = hashlib.sha256(node_id.encode(errors="surrogatepass")).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9_.=+,]+", "-", node_id)[-(_SLUG_MAX - 12) :].strip("-.")
    return f"{readable}-{checksum}"


class RunDirectory:
    """The directories of one run below ``build/failed``, shared by the processes of the run.

    ``.run-<id>`` holds the claims of the run (which test has which directory) and the notes of its workers. ``.lock`` is
    locked as long as any run goes on.
    """

    def __init__(self, root: Path, run: str) -> None:
        self.root = root
        self._own = root / f".run-{run}"
        self._lock = -1

    def begin(self, *, keep: bool) -> None:
        """Remove the evidence of earlier runs unless it is to be kept or another run goes on; called by the controller."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with suppress(BlockingIOError):
            if not keep:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for path in self.root.iterdir():
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path, ignore_errors=True)
                    elif path.name != ".lock":
                        path.unlink()
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._own.mkdir()

    def end(self) -> None:
        """Remove the claims and notes of the run; called by the controller."""
        shutil.rmtree(self._own, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @contextmanager
    def _claims(self) -> Iterator[dict[str, str]]:
        """Yield the slugs of this run by node ID, locked against the other processes; changes are written back."""
        with (self._own / "claims").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            claims: dict[str, str] = json.loads(text or "{}")
            yield claims
            if (changed := json.dumps(claims)) != text:
                file.truncate(0)
                file.write(changed)

    def claim(self, node_id: str) -> Path | None:
        """Return the directory of a test, the same for each call of the run; None if ``TESTS_MAX`` tests have theirs."""
        with self._claims() as claims:
            if node_id not in claims:
                if len(claims) >= TESTS_MAX:
                    return None
                slug, number = slug_of(node_id), 1
                while (self.root / (name := slug if number == 1 else f"{slug}-{number}")).exists():
                    number += 1
                (self.root / name).mkdir()
                claims[node_id] = name
            return self.root / claims[node_id]

    def release(self, node_id: str) -> None:
        """Remove the directory of a test that has not failed after all."""
        with self._claims() as claims:
            if name := claims.pop(node_id, ""):
                shutil.rmtree(self.root / name, ignore_errors=True)

    def write_note(self, worker: str, node_id: str, sources: Sources) -> None:
        """Record which test a worker runs and where its files are."""
        note = {"node_id": node_id, "sources": {label: list(map(str, paths)) for label, paths in sources.items()}}
        (self._own / f"{worker}.json").write_text(json.dumps(note))

    def read_note(self, worker: str, node_id: str) -> Sources:
        """Return where the files of a test are whose worker has crashed; nothing if the worker ran another test."""
        try:
            note = json.loads((self._own / f"{worker}.json").read_text())
        except (OSError, ValueError):
            return {}
        return {k: list(map(Path, v)) for k, v in note["sources"].items()} if note["node_id"] == node_id else {}


# -- report.txt --------------------------------------------------------------------------------------------------------


@functools.cache
def _commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def _environment() -> list[str]:
    """Return the product's variables of the environment, without secrets."""
    named = sorted(name for name in os.environ if name.startswith(("CALABASH_", "PYTEST_")))
    shown = {name: re.sub(r"//[^/@\s]*@", "//(not shown)@", os.environ[name]) for name in named}
    return [f"{name}={'(not shown)' if may_be_secret(name) else value}" for name, value in shown.items()]


def _hypothesis(item: pytest.Item) -> str:
    """Return the settings and the seed of a property test; the falsifying example is part of the failure."""
    function = getattr(item, "obj", None)
    module = sys.modules.get("hypothesis")
    if module is None or function is None or not module.is_hypothesis_test(function):
        return ""
    inner = getattr(function, "__func__", function)
    settings = getattr(inner, "_hypothesis_internal_use_settings", None) or module.settings.default
    lines = [f"profile {module.settings.get_current_profile_name()}", str(settings)]
    seeds = [getattr(inner, f"_hypothesis_internal_{name}", None) for name in ("use_seed", "use_generated_seed")]
    lines += [f"seed {seed}: decorate the test with @seed({seed})" for seed in seeds if seed is not None]
    if settings.derandomize:
        lines.append("derandomized: each run of the test tries the same examples")
    return "\n".join(lines)


def _stacks() -> str:
    """Return the stacks of all threads except this one and the worker's connection to the controller."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"{names.get(ident, 'unknown')} ({ident})\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident() and frame.f_globals.get("__name__") != "execnet.gateway_base"
    ]
    return "\n".join(stacks)


def _report(head: Mapping[str, str], sections: Iterable[tuple[str, str]]) -> str:
    lines = [f"{name:<10} {value}" for name, value in head.items()]
    for title, text in sections:
        if text.strip():
            cut = f"(the last {_SECTION_MAX} of {len(text)} characters)\n" if len(text) > _SECTION_MAX else ""
            lines += ["", f"---- {title} ".ljust(100, "-"), cut + text[-_SECTION_MAX:].rstrip("\n")]
    return "\n".join([*lines, "", ""])


def _fixture_values(item: pytest.Item) -> dict[str, object]:
    """Return the values of the fixtures of a test that are set up, also of those that only other fixtures asked for."""
    definitions: Mapping[str, Any] = getattr(getattr(item, "_request", None), "_fixture_defs", {})
    results = {name: definition.cached_result for name, definition in definitions.items()}
    found = {name: result[0] for name, result in results.items() if result is not None and result[2] is None}
    return {**found, **(getattr(item, "funcargs", None) or {})}


# -- the plug-in -------------------------------------------------------------------------------------------------------


class EvidencePlugin:
    """Hooks of the controller, of workers, and of a run without workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self._worker = "" if worker is None else str(worker["workerid"])
        self._command: Sequence[str] = worker["mainargv"] if worker else ["pytest", *config.invocation_params.args]
        self._run: str = worker[_RUN] if worker else uuid.uuid4().hex[:8]
        self._runs = RunDirectory(config.rootpath / "build" / "failed", self._run)
        self._error = ""
        self._failed: dict[str, str] = {}
        self._current: pytest.Item | None = None
        self._reported = False
        self._early = False

    # -- keeping ---------------------------------------------------------------------------------------------------

    def _keep(
        self,
        node_id: str,
        phase: str,
        sources: Sources,
        head: Mapping[str, str],
        sections: Iterable[tuple[str, str]],
    ) -> str:
        """Write one phase of a test; return its directory relative to the root, or why there is none."""
        try:
            directory = self._runs.claim(node_id)
            if directory is None:
                return f"none, {TESTS_MAX} tests were kept before"
            listing = self._copy(directory, phase, sources)
            load = " ".join(f"{value:.2f}" for value in os.getloadavg())
            general = {
                "test": node_id,
                "phase": phase,
                "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "worker": self._worker or "none",
                **head,
                "load": f"{load} on {len(os.sched_getaffinity(0))} of {os.cpu_count()} processors",
                "commit": _commit(self._config.rootpath),
                "command": shlex.join(map(str, self._command)),
                "repeat": shlex.join(["pytest", node_id]),
            }
            ends = [("environment", "\n".join(_environment())), ("files", "\n".join(listing) or "none")]
            with (directory / "report.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(_report(general, [*sections, *ends]))
            return str(directory.relative_to(self._config.rootpath))
        except Exception as error:  # evidence must not change the result of a run
            return f"none, {type(error).__name__}: {error}"

    def _copy(self, directory: Path, phase: str, sources: Sources) -> list[str]:
        copier = FileCopier(directory / phase, max(0, TEST_BYTES_MAX - size_of(directory)))
        try:
            for label, paths in sources.items():
                for path in paths:
                    copier.copy(re.sub(r"[^A-Za-z0-9_.-]+", "-", label)[:80], path)
        except Exception as error:
            copier.listing.append(f"the copy ended early: {type(error).__name__}: {error}")
        return copier.listing

    def rescue(self, value: object, error: BaseException) -> None:
        """Copy the files of an object that is about to be closed; removed at the end of the test unless it fails."""
        item = self._current
        if item is not None and not isinstance(error, pytest.skip.Exception):
            self._early = True
            text = "copied before the object was closed"
            self._keep(item.nodeid, "closed", sources_of({type(value).__name__: value}), {}, [("note", text)])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._current, self._early, self._reported = item, False, False
        self._note(item)
        try:
            return (yield)
        finally:
            self._current = None
            if self._early and not self._reported:
                with suppress(OSError):
                    self._runs.release(item.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        self._note(item)
        return (yield)

    def _note(self, item: pytest.Item) -> None:
        if self._worker:
            with suppress(OSError):
                self._runs.write_note(self._worker, item.nodeid, sources_of(_fixture_values(item)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # the outermost wrapper: others have added their sections
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            self._reported = True
            if (cancel := getattr(item, "cancel_timeout", None)) is not None:
                cancel()  # as pytest-timeout does a little later; the copy must not be interrupted
            sections = [("failure", report.longreprtext), ("hypothesis", _hypothesis(item)), *report.sections]
            vars(report)[_ATTRIBUTE] = self._keep(
                item.nodeid,
                report.when or "call",
                sources_of(_fixture_values(item)),
                {"duration": f"{report.duration:.3f} s"},
                [*sections, ("other threads", _stacks())],
            )
        return report

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """Keep evidence when pytest-timeout's thread method is about to end the process.

        The signal method makes the test fail as others do; the thread method ends the process without a report.
        """
        if settings.method != "thread":
            return None
        timer = threading.Timer(settings.timeout, self._end_process, (item, settings))
        timer.daemon = True

        def cancel() -> None:
            timer.cancel()
            timer.join()

        vars(item)["cancel_timeout"] = cancel
        timer.start()
        return True

    def _end_process(self, item: pytest.Item, settings: Any) -> None:
        """End the process as pytest-timeout does, with its evidence kept and named in the last line."""
        import pytest_timeout  # type: ignore[import-untyped]

        if not settings.disable_debugger_detection and pytest_timeout.is_debugging():
            return
        try:
            capture = self._config.pluginmanager.getplugin("capturemanager")
            output = ("", "")
            if capture is not None:
                capture.suspend_global_capture(item)
                output = capture.read_global_capture()
            text = f"Timeout (>{settings.timeout}s) from pytest-timeout, by method thread"
            sections = [("failure", text), ("stacks", _stacks()), ("stdout", output[0]), ("stderr", output[1])]
            sources = sources_of(_fixture_values(item))
            place = self._keep(item.nodeid, "timeout", sources, {}, sections)
            writer = self._config.get_terminal_writer()
            writer.line()
            writer.line(_report({"test": item.nodeid}, sections))
            writer.line(_line(place, item.nodeid))
            writer.flush()
        finally:
            os._exit(1)

    # -- the controller --------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)  # before workers are started
    def pytest_sessionstart(self) -> None:
        if not self._worker:
            try:
                self._runs.begin(keep=os.environ.get(KEEP, "") not in ("", "0") or self._config.option.collectonly)
            except OSError as error:
                self._error = str(error)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_RUN] = self._run

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed or self._worker:
            return
        place = vars(report).get(_ATTRIBUTE)
        if place is None and report.when not in ("setup", "call", "teardown"):  # pytest-xdist's report of a crash
            gateway = getattr(getattr(report, "node", None), "gateway", None)
            worker = str(getattr(gateway, "id", ""))
            sources = self._runs.read_note(worker, report.nodeid)
            place = self._keep(report.nodeid, "crash", sources, {"worker": worker}, [("failure", report.longreprtext)])
        if place is not None:
            self._failed.setdefault(report.nodeid, place)

    @pytest.hookimpl(trylast=True)  # after the terminal reporter's own last line
    def pytest_unconfigure(self) -> None:
        if self._worker:
            return
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            if self._error:
                reporter.write_line(f"evidence: not kept: {self._error}")
            for node_id, place in self._failed.items():
                reporter.write_line(_line(place, node_id))
        self._runs.end()


def _line(place: str, node_id: str) -> str:
    return f"evidence: {place}  {node_id}"


def pytest_configure(config: pytest.Config) -> None:
    """Register the plug-in."""
    plugin = EvidencePlugin(config)
    config.pluginmanager.register(plugin, PLUGIN)
    rescuers.append(plugin.rescue)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Unregister the plug-in from ``rescue``."""
    plugin = config.pluginmanager.get_plugin(PLUGIN)
    if isinstance(plugin, EvidencePlugin):
        rescuers.remove(plugin.rescue)
