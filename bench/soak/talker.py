"""Program with a port of a tenant's network: a server of its tenant's name, or a client that asks addresses for theirs.

``ask`` reports how often it was answered with its own tenant's name, and how often with another's; it sends datagrams with its
tenant's name to all addresses of the subnet. ``serve`` reports how many connections and datagrams had another's name.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import time

TCP, UDP = 8000, 8001
SUBNET = "10.0.1."


def report(**words: float | str) -> None:
    print(json.dumps(words), flush=True)


def serve(name: bytes, seconds: float) -> dict[str, float]:
    """Serve for ``seconds``."""
    asked = foreign = 0
    with socket.create_server(("", TCP)) as listening, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("", UDP))
        looking = selectors.DefaultSelector()
        for one in (listening, datagrams):
            one.setblocking(False)
            looking.register(one, selectors.EVENT_READ)
        report(ready=time.time())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for key, _ in looking.select(0.2):
                try:
                    if key.fileobj is datagrams:
                        said = datagrams.recv(100)
                    else:
                        client, _ = listening.accept()
                        with client:
                            client.settimeout(5)
                            said = client.recv(100)
                            client.sendall(name)
                except OSError:
                    continue
                asked += 1
                foreign += said != name
        looking.close()
    return {"asked": asked, "foreign": foreign}


def ask(name: bytes, addresses: list[str], seconds: float) -> dict[str, float]:
    """Connect to each address until it has answered once, at most for ``seconds``."""
    answered, foreign = 0, 0
    end = time.monotonic() + seconds
    left = list(addresses)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.setblocking(False)
        while left and time.monotonic() < end:
            for last in range(2, 30):
                try:
                    datagrams.sendto(name, (f"{SUBNET}{last}", UDP))
                except OSError:
                    continue
            for address in list(left):
                host, _, number = address.partition(":")
                try:
                    with socket.create_connection((host, int(number)), 2) as server:
                        server.sendall(name)
                        said = server.recv(100)
                except OSError:
                    time.sleep(0.2)
                    continue
                left.remove(address)
                answered += said == name
                foreign += said not in (name, b"")
    return {"answered": answered, "foreign": foreign, "silent": len(left)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", required=True)
    parser.add_argument("--name", required=True, help="of its tenant")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("addresses", nargs="*", help="HOST:PORT to ask; none: serve")
    options = parser.parse_args()
    report(begun=time.time(), tag=options.tag)
    name = options.name.encode()
    found = ask(name, options.addresses, options.seconds) if options.addresses else serve(name, options.seconds)
    report(ended=time.time(), **found)


if __name__ == "__main__":
    main()
