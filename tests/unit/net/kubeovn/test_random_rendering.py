"""Random networks rendered for Kube-OVN: every object is rendered or reported, under unique names and valid schemas."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.net.random_networks import RandomNetworks

from calabash.model.network import Port, vpc_of
from calabash.net.kubeovn.rendering import render_kube_ovn
from calabash.net.store.networks import Networks


@settings(max_examples=examples(25))
@given(st.integers(min_value=0, max_value=1 << 32))
def test_random_objects_are_rendered_or_reported_under_unique_names(seed: int) -> None:
    networks = RandomNetworks(seed).made(Networks(), 120)
    found = render_kube_ovn(networks)
    told = {resource.of for resource in found.resources} | {name for _, name in found.parts}
    told |= set(found.pods) | {refused.name for refused in found.unsupported}
    assert {item.name for item in networks.items()} <= told
    keys = [(one.kind, one.namespace, one.name) for one in found.resources]
    assert len(keys) == len(set(keys))
    groups = [name.replace("-", ".") for kind, _, name in keys if kind == "SecurityGroup"]
    assert len(groups) == len(set(groups))


@settings(max_examples=examples(25))
@given(st.integers(min_value=0, max_value=1 << 32))
def test_port_has_groups_and_switch_of_its_own_vpc_only(seed: int) -> None:
    networks = RandomNetworks(seed).made(Networks(), 120)
    found = render_kube_ovn(networks)
    spaces = {
        vpc: f"cb{number}" for vpc, number in ((v.of, int(v.name[2:])) for v in found.resources if v.kind == "Vpc")
    }
    for port in networks.all(Port):
        if port.virtual_parents:
            continue
        noted = found.pods[port.name]
        space = spaces[vpc_of(port.name)]
        assert noted["ovn.kubernetes.io/logical_switch"].startswith(f"{space}-")
        assert all(group.startswith(f"{space}-") for group in noted["ovn.kubernetes.io/security_groups"].split(","))
        assert noted["ovn.kubernetes.io/port_security"] == "true"
