"""A lab for each module with packets, on namespaces of this process alone; skipped visibly where the machine has none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.net import needs
from tests.net.site import Site

from calabash.netd.lab.lab import Lab
from calabash.netd.lab.record import register

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="session")
def lab_prefix() -> str:
    """A prefix that no other test process of this machine has: 't' and its number. What dead ones left is taken away."""
    for place in register().glob("t*.lab"):
        number = place.stem[1:]
        if not Path(f"/proc/{int(number, 36)}").exists():
            dead = Lab.of_prefix(place.stem)
            if dead is not None:
                dead.down()
    return "t" + _base36(os.getpid())


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest, lab_prefix: str) -> Iterator[Lab]:
    """Central, two hosts and two gateway hosts; a module that wants others says HOSTS and GATEWAYS. About half a second."""
    needs.need()
    made = Lab(
        prefix=lab_prefix,
        directory=register() / lab_prefix,
        hosts=getattr(request.module, "HOSTS", ("h1", "h2")),
        gateways=getattr(request.module, "GATEWAYS", ("g1", "g2")),
    )
    with made:
        yield made


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    """A book of networks that is carried out on the lab."""
    with Site(lab) as made:
        yield made


def _base36(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text
