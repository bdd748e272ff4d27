"""The part of Kubernetes' DRA allocator that decides if a device can be allocated beside others: counters and capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from calabash.adapters.kube.objects.claims import AllocatedDevice, CapacityRequestPolicy, ResourceSliceSpec, SliceDevice
from calabash.kubernetes.objects.quantity import parse_quantity


class Allocator:
    """Allocations from one pool. A shared device consumes its counters once, with its first allocation."""

    def __init__(self, specs: Sequence[ResourceSliceSpec]) -> None:
        self.devices = {device.name: device for spec in specs for device in spec.devices}
        self._free = {
            (one.name, name): parse_quantity(counter.value, what=name)
            for spec in specs
            for one in spec.shared_counters
            for name, counter in one.counters.items()
        }
        self._consumed: dict[str, dict[str, Fraction]] = {}
        self.results: list[AllocatedDevice] = []

    def take(self, name: str, asked: Mapping[str, str]) -> AllocatedDevice | None:
        """Allocate a device once more; return None if it cannot be allocated."""
        device = self.devices[name]
        shared = bool(device.allow_multiple_allocations)
        if name in self._consumed and not shared:
            return None
        capacity = _consumed(device, asked, self._consumed.get(name, {})) if shared else {}
        if capacity is None or (name not in self._consumed and not self._charge(device)):
            return None
        have = self._consumed.setdefault(name, {})
        for what, amount in capacity.items():
            have[what] = have.get(what, Fraction(0)) + amount
        result = AllocatedDevice(
            request="gpu",
            driver="calabash.dev",
            pool="gpu-1",
            device=name,
            share_id=f"share-{len(self.results)}" if shared else None,
            consumed_capacity={what: str(int(amount)) for what, amount in capacity.items()},
        )
        self.results.append(result)
        return result

    def _charge(self, device: SliceDevice) -> bool:
        takes = {
            (one.counter_set, name): parse_quantity(counter.value, what=name)
            for one in device.consumes_counters
            for name, counter in one.counters.items()
        }
        if any(self._free[key] < amount for key, amount in takes.items()):
            return False
        for key, amount in takes.items():
            self._free[key] -= amount
        return True


def _consumed(
    device: SliceDevice, asked: Mapping[str, str], have: Mapping[str, Fraction]
) -> dict[str, Fraction] | None:
    """Return the amounts that one allocation consumes; None if the device has less, or has no such capacity."""
    if set(asked) - set(device.capacity):
        return None
    found = {}
    for name, capacity in device.capacity.items():
        policy = capacity.request_policy
        assert policy is not None
        amount = _rounded(policy, asked.get(name))
        if amount is None or have.get(name, Fraction(0)) + amount > parse_quantity(capacity.value, what=name):
            return None
        found[name] = amount
    return found


def _rounded(policy: CapacityRequestPolicy, asked: str | None) -> Fraction | None:
    amount = parse_quantity(asked if asked is not None else policy.default or "", what="amount")
    if policy.valid_range is None:
        return next((v for text in policy.valid_values if (v := parse_quantity(text, what="value")) >= amount), None)
    least = parse_quantity(policy.valid_range.min or "0", what="min")
    step = parse_quantity(policy.valid_range.step or "1", what="step")
    steps = max(Fraction(0), (amount - least) / step)
    return least + -(-steps.numerator // steps.denominator) * step
