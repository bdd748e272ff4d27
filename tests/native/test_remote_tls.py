"""Tests of the one library with TLS: its interface, its symbols, when it is loaded and from where."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.compiled import compiled
from tests.native import remote_greetings as hello
from tests.native import remote_world
from tests.native.remote_connections import KEY, MinimalBroker, lease_file
from tests.native.remote_world import REMOTE_DIR, RemoteNode
from tests.native.sim_cuda_programs import ROOT, STRICT
from tests.native.simnode import until

TLS = "libcalabash-tls.so"
DRIVERS = ("libcuda.so.1", "libnvidia-ml.so.1", "span/libcuda-session.so", "span/libnvidia-ml-session.so")
NO_TLS = "calabash: this build of Calabash has no TLS: {} does not exist\nhint: install libssl-dev, then make native;"
# What a program with an OpenSSL of its own exports; each function ends the program if it is called.
OTHER_OPENSSL = (
    *("OPENSSL_init_ssl", "OPENSSL_init_crypto", "OSSL_LIB_CTX_new", "TLS_client_method", "SSL_CTX_new_ex", "SSL_new"),
    *("SSL_CTX_ctrl", "SSL_connect", "SSL_read_ex", "SSL_write_ex", "SSL_free", "BIO_meth_new", "EVP_CIPHER_fetch"),
    *("EVP_EncryptUpdate", "CRYPTO_malloc", "CRYPTO_zalloc", "ERR_clear_error", "RAND_bytes_ex"),
)
_START = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0), flush=True); input()"
_BESIDE_PYTHONS = (
    f"import ssl; ssl.create_default_context(); {_START.replace('; input()', '')}; ssl.create_default_context()"
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RemoteNode]:
    made = RemoteNode(tmp_path / "node.state", "T4")
    yield made
    made.close()


@pytest.fixture
def lease(node: RemoteNode, tmp_path: Path) -> Iterator[str]:
    """Return the address of a server behind TLS."""
    broker = MinimalBroker(node.socket)
    yield f"file:{lease_file(tmp_path / 'lease', broker.port)}"
    broker.close()


def listing(*command: str | Path) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def exported(library: Path) -> list[str]:
    return [line.split()[-1] for line in listing("nm", "-D", "--defined-only", library)]


def interface(directory: Path) -> Path:
    """Compile the program that calls the interface, into a directory with the library; return its path."""
    sources = [Path(__file__).with_name("remote_tls.c"), ROOT / "native/remote/wire/tls.c"]
    made = compiled("remote_tls", ["gcc", *STRICT, f"-I{ROOT}/native", *sources, "-ldl"])
    (directory / TLS).symlink_to(REMOTE_DIR / TLS)
    return Path(shutil.copy(made, directory))


def said_by(command: Path, *words: str, **environment: str) -> str:
    done = subprocess.run(
        [command, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(environment: dict[str, str], *, cwd: Path | None = None, program: str = _START) -> tuple[str, str]:
    """Start a program that opens a session; return its output and its errors."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environment, cwd=cwd, input="\n", capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def decoy(directory: Path, body: str) -> Path:
    """Compile a library with the file name of the library with TLS."""
    directory.mkdir(exist_ok=True)
    (directory / "decoy.c").write_text(body)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", directory / "decoy.c", "-o", directory / TLS], check=True, capture_output=True
    )
    return directory


def copy_of_libraries(directory: Path) -> Path:
    """Copy the libraries and the worker, without TLS."""
    return Path(shutil.copytree(REMOTE_DIR, directory, symlinks=True, ignore=shutil.ignore_patterns(TLS)))


@pytest.mark.parametrize(("command", "said"), [("load", "loaded"), ("copies", "same"), ("ended", "ended")])
def test_interface_carries_bytes_both_ways_and_ends(tmp_path: Path, command: str, said: str) -> None:
    assert said_by(interface(tmp_path), command) == said + "\n"


def test_other_key_or_session_is_refused(tmp_path: Path) -> None:
    lines = said_by(interface(tmp_path), "refused").splitlines()
    assert lines == [
        "the server refused the key of lease 0123",
        "hint: the lease may have ended",
        "the program does not have the lease's key",
    ]


def test_forked_child_does_not_repeat_the_random_numbers_of_its_parent(tmp_path: Path) -> None:
    child, parent = said_by(interface(tmp_path), "forked").splitlines()
    assert len(child) == len(parent) == 64
    assert child != parent


def test_openssl_is_in_one_library_that_exports_one_symbol() -> None:
    assert exported(REMOTE_DIR / TLS) == ["calabash_tls"]
    for path in REMOTE_DIR.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        assert (b"TLS_AES_128_GCM_SHA256" in path.read_bytes()) == (path.name == TLS), path
        for line in listing("readelf", "-d", path):
            assert not re.search(r"NEEDED.*(libssl|libcrypto|calabash-tls)", line), path
        assert path.stat().st_size < (8 << 20 if path.name == TLS else 2 << 20)
    names = exported(REMOTE_DIR / "libcuda.so.1")
    assert len(names) > 400
    assert [name for name in names if not name.startswith("cu")] == []


def _has_tls(pid: int) -> bool:
    return TLS in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("over_tls", [False, True], ids=["local", "over TLS"])
def test_library_is_loaded_only_for_tls(node: RemoteNode, lease: str, over_tls: bool) -> None:
    environment = node.environment(**({"CALABASH_REMOTE": lease} if over_tls else {}))
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _START], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "0\n"
        (worker,) = node.workers()
        assert [_has_tls(pid) for pid in (program.pid, worker, node.host.pid)] == [over_tls] * 3
        program.communicate("\n", timeout=60)
    node.wait_for_workers()


def test_neither_search_path_nor_working_directory_replaces_the_library(
    node: RemoteNode, lease: str, tmp_path: Path
) -> None:
    loaded = tmp_path / "loaded"
    body = f'#include <stdio.h>\n__attribute__((constructor)) static void run(void) {{ fopen("{loaded}", "w"); }}\n'
    directory = decoy(tmp_path / "decoy", body)
    environment = node.environment(CALABASH_REMOTE=lease)
    environment["LD_LIBRARY_PATH"] = f"{directory}:{environment['LD_LIBRARY_PATH']}"
    assert start(environment, cwd=directory) == ("0", "")
    assert not loaded.exists()
    subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL('{directory / TLS}')"], check=True)
    assert loaded.exists()  # had it been loaded, it would have been noticed


def test_libraries_loaded_by_a_relative_path_refuse_tls_with_a_hint(node: RemoteNode, lease: str) -> None:
    environment = node.environment(CALABASH_REMOTE=lease, LD_LIBRARY_PATH=REMOTE_DIR.name)
    code, said = start(environment, cwd=REMOTE_DIR.parent)
    assert code != "0"
    assert "TLS is not available: this library was loaded by a relative path" in said
    assert "\nhint: write absolute paths into LD_LIBRARY_PATH\n" in said
    assert start(environment | {"CALABASH_REMOTE": f"unix:{node.socket}"}, cwd=REMOTE_DIR.parent) == ("0", "")


def test_program_with_an_openssl_of_its_own_is_not_disturbed_and_does_not_disturb(
    node: RemoteNode, lease: str, tmp_path: Path
) -> None:
    source = tmp_path / "other.c"
    functions = "".join(f"void {name}(void) {{ abort(); }}\n" for name in OTHER_OPENSSL)
    source.write_text(f"#include <stdlib.h>\n{functions}")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", tmp_path / "other.so"], check=True)
    environment = node.environment(CALABASH_REMOTE=lease)
    assert start(environment | {"LD_PRELOAD": str(tmp_path / "other.so")}) == ("0", "")
    assert start(environment, program=_BESIDE_PYTHONS) == ("0", "")


def test_program_of_several_servers_uses_tls_to_each(node: RemoteNode, tmp_path: Path) -> None:
    brokers = [MinimalBroker(node.socket) for _ in range(2)]
    leases = [lease_file(tmp_path / f"lease{i}", broker.port) for i, broker in enumerate(brokers)]
    where = "span:" + "\n".join(f"file:{path}" for path in leases)
    environment = node.environment(CALABASH_REMOTE=where, LD_LIBRARY_PATH=str(REMOTE_DIR / "span"))
    assert start(environment) == ("0", "")
    assert [len(broker.handed) for broker in brokers] == [1, 1]
    for broker in brokers:
        broker.close()


def test_program_without_the_library_gets_an_error_with_a_hint(node: RemoteNode, lease: str, tmp_path: Path) -> None:
    directory = copy_of_libraries(tmp_path / "remote")
    environment = node.environment(CALABASH_REMOTE=lease, LD_LIBRARY_PATH=str(directory))
    code, said = start(environment)
    assert code != "0"
    assert said.startswith(NO_TLS.format(directory / TLS))
    assert start(environment | {"CALABASH_REMOTE": f"unix:{node.socket}"}) == ("0", "")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(
            "const unsigned calabash_tls[64] = {2, 88};", "has interface version 2 instead of 1", id="version"
        ),
        pytest.param("const unsigned calabash_tls[64] = {1, 16};", "has interface version 1 instead of 1", id="size"),
        pytest.param("int something;", "undefined symbol: calabash_tls", id="another library"),
    ],
)
def test_library_of_another_version_is_refused(
    node: RemoteNode, lease: str, tmp_path: Path, body: str, said: str
) -> None:
    directory = decoy(copy_of_libraries(tmp_path / "remote"), body)
    code, told = start(node.environment(CALABASH_REMOTE=lease, LD_LIBRARY_PATH=str(directory)))
    assert code != "0"
    assert told.startswith("calabash: TLS is not available: ")
    assert said in told
    assert "\nhint: " in told


def test_host_without_the_library_refuses_the_session_and_serves_local_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = copy_of_libraries(tmp_path / "remote") / "calabash-worker"
    monkeypatch.setattr(remote_world, "WORKER", worker)
    node = RemoteNode(tmp_path / "node.state", "T4")
    with socket.create_server(("127.0.0.1", 0)) as port, socket.create_connection(port.getsockname()) as connection:
        until(node.socket.exists, "the host listens")
        with hello.connect(node.socket) as host:
            hello.send(host, hello.greeting(hello.HANDOVER, session=b"s" * 16, key=KEY), connection.fileno())
            assert hello.answer(host) == hello.FAILED
    assert node.said.read_text().startswith(
        f"worker: this build of Calabash has no TLS: {worker.parent / TLS} does not exist\nhint: "
    )
    assert start(node.environment()) == ("0", "")
    node.close()


def test_build_without_openssl_warns_and_has_no_such_library(tmp_path: Path) -> None:
    out = tmp_path / "out"
    # "-n" builds nothing, but the sources must be found as they are.
    words = ("make", "-n", "-C", str(ROOT / "native"), f"OUT={out}", f"BUILD={ROOT / 'build' / 'native'}")
    known = subprocess.run([*words, "all"], capture_output=True, text=True, check=True)
    assert "NO TLS" not in known.stderr
    assert f"remote/{TLS}" in known.stdout
    (out / "remote").mkdir(parents=True)
    (out / "remote" / TLS).write_text("of an earlier build")
    without = subprocess.run([*words, "OPENSSL_LIBS=", "all"], capture_output=True, text=True, check=True)
    assert "THIS BUILD HAS NO TLS" in without.stderr
    assert "hint: install libssl-dev" in without.stderr
    assert f"remote/{TLS}" not in without.stdout
    assert not (out / "remote" / TLS).exists()
