"""What keepers of appliances see is told to the pool as conditions, once and again when it could not be."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.api.networks import NetworkReport
from calabash.model.errors import CalabashError
from calabash.netd.appliances.telling import ApplianceNews
from calabash.netd.appliances.watching import ApplianceSight


class Pool:
    """Takes reports, or cannot be reached."""

    def __init__(self) -> None:
        self.there = True
        self.told: list[tuple[str, bool | None, str, str, bool]] = []

    def report(self, reports: Sequence[NetworkReport]) -> None:
        if not self.there:
            raise CalabashError("gone")
        for one in reports:
            (found,) = one.status.conditions
            self.told.append((one.name, found.holds, found.reason, found.message, one.partial))


def sight(*, active: bool, item: str = "red/site", kind: str = "lb", failure: str = "", **well: bool) -> ApplianceSight:
    return ApplianceSight(item=item, kind=kind, replica=f"{item}-1", active=active, well=well, failure=failure)


def test_what_all_keepers_see_is_told_when_it_changes_and_again_when_it_could_not_be() -> None:
    pool = Pool()
    news = ApplianceNews(pool.report, hosts=2, all_hosts=True, now_s=lambda: 7.0)
    news.seen("g1", [sight(active=True, web1=True, web2=True)])
    news.tell()
    assert pool.told == []  # of the other host nothing is known
    news.seen("g2", [sight(active=False, web1=False)])
    news.tell()
    news.tell()
    assert pool.told == [("red/site", True, "backends_well", "2 of 2 backends are healthy", True)]
    pool.there = False
    news.seen("g1", [sight(active=True, web1=False, web2=False)])
    news.tell()
    pool.there = True
    news.tell()
    assert pool.told[1:] == [
        ("red/site", False, "no_backend", "0 of 2 backends are healthy; unhealthy: web1, web2", True)
    ]
    news.seen("g1", [sight(active=False)])
    news.tell()
    assert pool.told[2][1:3] == (False, "no_active_replica")


def test_one_host_of_several_speaks_only_of_what_is_active_there() -> None:
    pool = Pool()
    news = ApplianceNews(pool.report, hosts=1, all_hosts=False)
    news.seen("g1", [sight(active=False), sight(active=True, item="red/out", kind="gateway", failure="nft refuses")])
    news.tell()
    assert pool.told == [("red/out", True, "degraded", "red/out-1: nft refuses", True)]


def test_a_balancer_that_does_not_say_how_its_backends_are_is_not_called_well() -> None:
    pool = Pool()
    news = ApplianceNews(pool.report, hosts=1, all_hosts=True)
    news.seen("g1", [sight(active=True)])
    news.tell()
    assert pool.told == [("red/site", None, "backends_unknown", "HAProxy does not answer", True)]
