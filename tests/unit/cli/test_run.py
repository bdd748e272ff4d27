"""``calabash run`` against a pool that answers from a list: what is asked, what is held, what the program gets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 30.0


class StubPool:
    """Answers one request after the other with the next of ``answers``; keeps what was asked."""

    def __init__(self, home: Path) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers: list[tuple[int, Any]] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(home / "pool.sock"))
        self._listener.listen()
        self._listener.settimeout(TIMEOUT_S)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(TIMEOUT_S)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(
            next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")).split()[1]
        )
        while len(body) < length:
            body += connection.recv(65536)
        self.asked.append((" ".join(head.split(b"\r\n")[0].decode().split()[:2]), json.loads(body or b"null")))
        status, answer = self.answers.pop(0) if self.answers else (404, {"reason": "not_found", "message": "no more"})
        connection.sendall(f"HTTP/1.1 {status} X\r\n\r\n".encode() + json.dumps(answer).encode())

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(TIMEOUT_S)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StubPool]:
    made = StubPool(tmp_path)
    yield made
    made.close()


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "calabash.cli.main", "run", *words],
        env=os.environ | {"CALABASH_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def grant(**more: Any) -> dict[str, Any]:
    return {"id": "a1", "lease": "", "environment": {"GIVEN": "yes"}} | more


def test_where_the_kernel_keeps_the_members_one_request_is_all(pool: StubPool, tmp_path: Path) -> None:
    pool.answers = [(201, grant())]
    done = run(tmp_path, "--memory", "1GiB", "--", "sh", "-c", "echo $GIVEN")
    assert (done.returncode, done.stdout, done.stderr) == (0, "yes\n", "")
    ((what, body),) = pool.asked
    assert what == "POST /v1/allocations"
    assert (body["enter"], body["memory_mib"], body["command"]) == (True, 1024, ["sh", "-c", "echo $GIVEN"])


def test_where_a_lock_keeps_them_the_program_inherits_it_and_the_pool_learns_its_pid(
    pool: StubPool, tmp_path: Path
) -> None:
    lease = tmp_path / "lease"
    lease.write_text("")
    pool.answers = [(201, grant(lease=str(lease))), (200, {"id": "a1", "state": "running"})]
    done = run(tmp_path, "--", "sh", "-c", f"echo $$; flock -n -x {lease} true || echo locked")
    pid, said = done.stdout.split()
    assert said == "locked"
    assert pool.asked[1] == ("POST /v1/allocations/a1/started", {"pid": int(pid)})


def test_a_slice_whose_lease_is_gone_is_given_back_and_the_program_is_not_started(
    pool: StubPool, tmp_path: Path
) -> None:
    pool.answers = [(201, grant(lease=str(tmp_path / "gone"))), (200, {})]
    done = run(tmp_path, "--", "echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    assert "taken back" in done.stderr
    assert pool.asked[1][0] == "DELETE /v1/allocations/a1"


def test_what_the_pool_warns_of_is_printed_before_the_program_starts(pool: StubPool, tmp_path: Path) -> None:
    pool.answers = [(201, grant(warnings=["the slice is small", "and\nslow"]))]
    done = run(tmp_path, "--", "sh", "-c", "echo program >&2")
    assert done.stderr.splitlines() == ["warning: the slice is small", "warning: and slow", "program"]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "ended the connection without an answer"),
        (b"nonsense", "speaks no HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n{not json", "is not JSON"),
        (b"HTTP/1.1 500 X\r\n\r\n[]", "answered with status 500"),
        (
            b"HTTP/1.1 409 X\r\n\r\n" + json.dumps({"reason": "no_such_code", "message": "so it is"}).encode(),
            "so it is",
        ),
    ],
)
def test_answers_that_are_none_are_errors_of_one_line(tmp_path: Path, raw: bytes, said: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "pool.sock"))
        listener.listen()
        listener.settimeout(TIMEOUT_S)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(raw)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        done = run(tmp_path, "--", "true")
        thread.join(TIMEOUT_S)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr
