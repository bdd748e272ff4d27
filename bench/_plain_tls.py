"""Throughput of TLS without the product: OpenSSL's AES-128-GCM records over one local connection between two processes."""

from __future__ import annotations

import datetime
import multiprocessing
import socket
import ssl
import tempfile
import time
from pathlib import Path

from calabash.kubernetes.serving_certificates.authority import make_authority, make_serving

PIECE_BYTES = 256 << 10
CIPHER = "ECDHE-ECDSA-AES128-GCM-SHA256"


def _context(server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # TLS 1.3 does not let a program choose the cipher
    context.set_ciphers(CIPHER)
    if server:
        now = datetime.datetime.now(datetime.UTC)
        pair = make_serving(make_authority(now, 1), ["127.0.0.1"], now, 1)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "pair.pem"
            path.write_bytes(pair.certificate + pair.key)
            context.load_cert_chain(path)
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _swallow(listener: socket.socket, bytes_: int) -> None:
    connection, _ = listener.accept()
    into, got = bytearray(PIECE_BYTES), 0
    with _context(True).wrap_socket(connection, server_side=True) as tls:
        while some := tls.recv_into(into):
            got += some
            if got >= bytes_:
                tls.send(b"x")
                got = 0


def tls_gib_s(bytes_: int, times: int = 3) -> float:
    """Return the throughput of ``bytes_`` bytes one way, in GiB/s: the best of ``times`` tries."""
    data, best = memoryview(bytes(bytes_)), 0.0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(target=_swallow, args=(listener, bytes_))
        process.start()
        connection = socket.create_connection(listener.getsockname())
        with _context(False).wrap_socket(connection) as tls:
            for _ in range(times + 1):
                began = time.monotonic()
                for at in range(0, bytes_, PIECE_BYTES):
                    tls.sendall(data[at : at + PIECE_BYTES])
                tls.recv(1)
                best = max(best, bytes_ / (time.monotonic() - began) / (1 << 30))
        process.join()
    return best
