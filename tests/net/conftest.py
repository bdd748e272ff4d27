"""Fixtures of tests with packets: a lab for each module, in namespaces of this process; skipped if the machine has none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.evidence_sources import evidence_of
from tests.net import needs
from tests.net.site import Site

from calabash.controllers.lab.central import LabCentral
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register, registered

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@evidence_of.register(Lab)
@evidence_of.register(LabCentral)
def _evidence_of_lab(lab: Lab | LabCentral) -> Iterable[Path]:
    """Return the files that are kept if a test fails: logs of OVN and Open vSwitch, and their databases."""
    return [lab.directory]


@pytest.fixture(scope="session")
def lab_prefix() -> Iterator[str]:
    """Return a prefix of names that no other test process of this machine has: 't' and the process's number.

    Prefixes with other letters before the number belong to this process too. Labs of processes that have ended are removed.
    """
    number = _base36(os.getpid())
    if os.geteuid() != 0:
        yield "t" + number
        return
    known = register() / "tests"
    known.mkdir(mode=0o700, parents=True, exist_ok=True)
    for mark in known.iterdir():
        if not Path(f"/proc/{int(mark.name, 36)}").exists():
            _take_away(mark.name)
            mark.unlink(missing_ok=True)
    (known / number).touch()
    yield "t" + number
    (known / number).unlink(missing_ok=True)


def _take_away(number: str) -> None:
    for prefix in registered():
        if prefix[1:] == number and (left := Lab.of_prefix(prefix)) is not None:
            left.down()


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest, lab_prefix: str) -> Iterator[Lab]:
    """A lab with a central node, two hosts and two gateway hosts; a module overrides these by HOSTS and GATEWAYS."""
    needs.need()
    made = Lab(
        prefix=lab_prefix,
        directory=register() / lab_prefix,
        hosts=getattr(request.module, "HOSTS", ("h1", "h2")),
        gateways=getattr(request.module, "GATEWAYS", ("g1", "g2")),
    )
    with made:
        yield made
        assert _forbidden(made) == []


def _forbidden(lab: Lab) -> list[str]:
    """Return the changes that hosts requested and their role in the southbound database does not permit."""
    logs = [host.directory / "ovn-controller.log" for host in lab.hosts.values()]
    lines = [line for log in logs if log.exists() for line in log.read_text(errors="replace").splitlines()]
    return [line for line in lines if "permission error" in line]


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    """Networks that are realized on the lab."""
    with Site(lab) as made:
        yield made


def _base36(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text
