"""Settings of cards: defaults of the node and overrides of one card."""

from __future__ import annotations

from pathlib import Path

import pytest

from calabash.kubernetes.node_plugin.daemon import read_settings as read_agent_settings
from calabash.model.device import REPLICAS, Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.node.devices.settings import CardSettings, Wanted, require_possible
from calabash.node.health.store import CardEntry, HealthStore
from calabash.platform.home.directory import SETTINGS_FILE
from calabash.pool.settings import read_settings

CARD = Device(uuid=DeviceUuid("GPU-1"), index=0, vendor="acme", model="A100", memory_mib=40_960)
POOL = CardSettings(spill_mib=1000, spill=False, replicas=6, interval="short")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (CardEntry(), (0, 6, "short", "")),
        (CardEntry(replicas=2, interval="long", spill="on", mode="vgpu"), (1000, 2, "long", "vgpu")),
        (CardEntry(spill="off", interval="default"), (0, 6, "default", "")),
    ],
)
def test_setting_of_one_card_overrides_the_default(entry: CardEntry, expected: tuple[int, int, str, str]) -> None:
    shown = POOL.shown(CARD, entry)
    assert (shown.spill_mib, shown.replicas, shown.interval, shown.pinned) == expected


def test_changed_settings_are_stored_and_others_unchanged(tmp_path: Path) -> None:
    fields = Wanted(replicas=3, spill="on").entry_fields()
    assert fields == {"replicas": 3, "spill": "on"}
    assert Wanted(replicas=0, interval="auto", spill="auto").entry_fields() == {
        "replicas": 0, "interval": "", "spill": "",
    }  # fmt: skip
    HealthStore(tmp_path).write({"GPU-1": CardEntry(replicas=3, spill="on")})
    found = HealthStore(tmp_path).read()
    assert found is not None
    assert POOL.shown(CARD, found["GPU-1"]).replicas == 3


@pytest.mark.parametrize("wrong", [{"replicas": 33}, {"replicas": -1}, {"interval": "tiny"}, {"spill": "yes"}])
def test_invalid_setting_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(CalabashError) as refused:
        Wanted(**wrong)  # type: ignore[arg-type]
    assert refused.value.reason is Reason.BAD_REQUEST
    assert refused.value.hint


def test_replicas_below_the_present_sharers_are_refused() -> None:
    for replicas in (2, 0):  # 0: six, as for all
        require_possible(CARD, Wanted(replicas=replicas), POOL, sharers=2, interval_of=lambda: None)
    with pytest.raises(CalabashError, match="3 tenants share device 0 by time slices, more than replicas 2") as refused:
        require_possible(CARD, Wanted(replicas=2), POOL, sharers=3, interval_of=lambda: None)
    assert refused.value.reason is Reason.CONFLICT


def test_setting_that_node_or_driver_does_not_support_is_refused() -> None:
    def cannot() -> object:
        raise CalabashError("not supported", reason=Reason.UNSUPPORTED)

    with pytest.raises(CalabashError) as refused:
        require_possible(CARD, Wanted(spill="on"), CardSettings(), sharers=0, interval_of=cannot)
    assert refused.value.reason is Reason.NOT_PERMITTED
    with pytest.raises(CalabashError) as refused:
        require_possible(CARD, Wanted(interval="short"), POOL, sharers=0, interval_of=cannot)
    assert refused.value.reason is Reason.UNSUPPORTED
    require_possible(CARD, Wanted(interval="auto", replicas=1), POOL, sharers=0, interval_of=cannot)


def test_pool_and_node_agent_read_the_defaults_of_all_cards(tmp_path: Path) -> None:
    usual = read_settings(tmp_path).devices.cards()
    assert (usual.replicas, usual.interval, usual.spill) == (REPLICAS, "", False)
    (tmp_path / SETTINGS_FILE).write_text('[devices]\nreplicas = 4\ninterval = "long"\n')
    told = read_settings(tmp_path).devices.cards()
    assert (told.replicas, told.interval) == (4, "long")
    for wrong in ("replicas = 0", "replicas = 33", 'interval = "tiny"'):
        (tmp_path / SETTINGS_FILE).write_text(f"[devices]\n{wrong}\n")
        with pytest.raises(CalabashError) as refused:
            read_settings(tmp_path)
        assert refused.value.reason is Reason.BAD_FILE
    agent = read_agent_settings(["--node", "n1", "--replicas", "4", "--interval", "long"])
    assert (agent.replicas, agent.interval) == (4, "long")
    assert read_agent_settings(["--node", "n1"]).interval == ""
