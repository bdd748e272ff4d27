"""Listeners in SECURITY.md: every place of the sources that binds or listens has a row, and every row names such places."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

import pytest
import yaml
from tests.listening import KUBERNETES, MACHINE, OTHERS, ROOT, rows, text_of

from calabash.api.gateway import ConsoleSettings
from calabash.cli.pool.exporter import exporter

SOURCES = ROOT / "src" / "calabash"
CALLS = frozenset(
    {
        "bind",
        "listen",
        "listen_on",
        "listen_unix",
        "create_server",
        "create_unix_server",
        "create_datagram_endpoint",
        "start_server",
        "start_unix_server",
        "add_insecure_port",
        "add_secure_port",
        "HTTPServer",
        "ThreadingHTTPServer",
        "TCPServer",
        "ThreadingTCPServer",
        "UDPServer",
        "UnixStreamServer",
        "make_server",
    }
)
# Calls of these names by which nothing listens: a method of another object, or of a listener that has a row of its own.
NO_SOCKETS = {
    "node/allocations/table.py": {"self._slots.bind"},
    "node/modes/passthrough/attach.py": {"machine.vfio.bind"},
    "kubernetes/planner/serve/extender.py": {"self._planning.bind"},
    "kubernetes/planner/apply/api_writes.py": {"self._checked_client(self._binding).bind"},
    "kubernetes/planner/service.py": {"self._core.answers.bind", "self._writes.bind"},
    "sched/cluster/engine.py": {"policy.bind"},
    "sched/policies/combined.py": {"p.bind"},
    "adapters/host/pci/simulated.py": {"self._bus.bind"},
    "adapters/store/database.py": {"sa.event.listen"},
    "adapters/store/guards.py": {"sa.event.listen"},
    # it opens the sockets of the modules that call it, which have rows
    "transport/listening.py": {"sockets.create_server", "listener.bind", "listener.listen"},
    # they hand an address to a function that has a row
    "kubernetes/admission/run.py": {"listen_on"},
    "kubernetes/metrics/run.py": {"listen_on"},
    "kubernetes/usage/program.py": {"listen_on"},
    "adapters/kubelet/dra.py": {"listen"},
    "adapters/kubelet/relay.py": {"listen"},
    "adapters/kubelet/server.py": {"listen"},
    "adapters/kubelet/grpc_server.py": {"listen"},
}
_C_CALL = re.compile(r"(?<![\w.>])(?:bind|listen)\s*\(\s*[\w(>.-]+,")
_C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def listening_calls(text: str, known: Collection[str] = ()) -> Iterator[str]:
    """Yield the calls of a Python text by which something may listen, without the known exceptions."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if last in CALLS or last == "run":
                called = ast.unparse(node.func)
                if called not in known and (last != "run" or called == "uvicorn.run"):
                    yield called


def places() -> set[str]:
    """Return all files of the product that bind or listen."""
    found = set()
    for path in SOURCES.rglob("*.py"):
        name = path.relative_to(SOURCES).as_posix()
        if any(listening_calls(path.read_text(), NO_SOCKETS.get(name, ()))):
            found.add(name)
    native = [path for path in (ROOT / "native").rglob("*") if path.suffix in {".c", ".h", ".cc", ".cpp"}]
    for path in native:
        if _C_CALL.search(_C_COMMENT.sub("", path.read_text(errors="replace"))):
            found.add(path.relative_to(ROOT).as_posix())
    return found


def named() -> set[str]:
    """Return all files that SECURITY.md names in its tables of listeners and in the text below them."""
    texts = [text_of(heading) for heading in (MACHINE, KUBERNETES, OTHERS)]
    return {word for text in texts for word in re.findall(r"`([\w/]+\.(?:py|c))`", text)}


def test_every_place_that_binds_or_listens_is_in_a_table() -> None:
    assert places() - named() == set(), "say in SECURITY.md what listens there, who may connect and how that is proved"


def test_every_place_that_a_table_names_is_there_and_listens_or_starts_what_listens() -> None:
    starts = {module for row in rows(OTHERS) for module in row.modules}
    assert {name for name in named() if not ((SOURCES / name).is_file() or (ROOT / name).is_file())} == set()
    assert named() - starts - places() == set(), "nothing listens there any more: take the row away"
    for row in [*rows(MACHINE), *rows(KUBERNETES)]:
        assert row.modules or "a program of Kubernetes" in row.cells["in"], row.name


@pytest.mark.parametrize(
    "text",
    [
        "import socket\nsocket.socket().bind(('', 80))",
        "async def f(loop): await loop.create_server(None, '', 80)",
        "from asyncio import start_server\nstart_server(None)",
        "class A(http.server.ThreadingHTTPServer): pass\nhttp.server.ThreadingHTTPServer(('', 1), None)",
        "import uvicorn\nuvicorn.run(None)",
        "server.add_secure_port('[::]:1', None)",
    ],
)
def test_calls_by_which_something_listens_are_found(text: str) -> None:
    assert any(listening_calls(text))


@pytest.mark.parametrize("text", ["asyncio.run(f())", "subprocess.run(['true'])", "bound = other.unbind()"])
def test_other_calls_are_passed_over(text: str) -> None:
    assert not any(listening_calls(text))


def test_calls_that_are_passed_over_are_there() -> None:
    for name, calls in NO_SOCKETS.items():
        text = ast.unparse(ast.parse((SOURCES / name).read_text()))
        assert all(f"{call}(" in text for call in calls), (name, calls)


def test_rows_are_complete() -> None:
    for row in [*rows(MACHINE), *rows(KUBERNETES), *rows(OTHERS)]:
        assert all(row.cells.values()), row.name
    for heading in (MACHINE, KUBERNETES, OTHERS):
        names = [row.name for row in rows(heading)]
        assert len(names) == len(set(names))


def test_addresses_of_the_tables_are_the_defaults() -> None:
    addresses = {row.name: row.address for row in rows(MACHINE) if row.address}
    (listen,) = (option for option in exporter.params if option.name == "listen")
    assert addresses == {"console and API over TCP": ConsoleSettings().listen, "exporter": listen.default}


def test_ports_of_the_chart_are_those_of_the_table() -> None:
    """Yield the ports of the chart's values and templates: `containerPort`, and options with a port."""
    chart = ROOT / "charts" / "calabash"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    ports = {str(values[part][key]) for part in ("admission", "metrics") for key in ("port", "probePort")}
    for path in (chart / "templates").glob("*.yaml"):
        text = path.read_text()
        ports |= set(re.findall(r"containerPort: (\d+)", text)) | set(re.findall(r"--[\w-]*port=(\d+)", text))
    table = {
        port for row in rows(KUBERNETES) for port in re.findall(r"\b\d{4,5}\b", row.cells["where"]) if port[0] != "0"
    }
    assert table == ports | {"7070"}, "7070 is the planner's own default, which the chart does not name"
