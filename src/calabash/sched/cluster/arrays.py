"""The resident cluster: place and release shapes, change nodes, and log changed rows.

Theory of operation. All state that placement depends on is in a few numpy arrays (``columns``), which are created once.
``place`` and ``release`` change the entries of one row, in integers, so that each is exactly the inverse of the other, and
append the row to a change log. Readers (score caches, explanations, consoles) keep a cursor into the log and read only the rows
that changed since; nothing is copied per cycle. What-if questions are answered by placing and releasing again.
"""

from __future__ import annotations

from typing import NoReturn

from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import with_instance, without_instance
from calabash.sched.cluster.columns import MODE_MIG, MODE_UNSET, Columns
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape
from calabash.sched.cluster.spec import NodeSpec

_LOG_MIN = 4096


class Cluster(Columns):
    """The resident cluster. Its attributes are those of ``Columns``; other classes must not change them."""

    @property
    def node_count(self) -> int:
        """Return the number of rows, including cordoned and removed nodes."""
        return len(self.names)

    @property
    def gpu_total(self) -> int:
        """Return the number of devices of all rows."""
        return int(self.gpu_count.sum())

    @property
    def position(self) -> int:
        """Return the end of the change log: the cursor of a reader that has read all changes."""
        return self.log_start + len(self.log)

    def changed_since(self, cursor: int) -> list[int] | None:
        """Return the rows that changed after a cursor, possibly repeated; None if the log does not reach back so far."""
        if cursor < self.log_start:
            return None
        return self.log[cursor - self.log_start :]

    def row(self, name: str) -> int:
        """Return the row of a node.

        Raises:
            CalabashError: there is no node of that name.
        """
        try:
            return self.row_of[name]
        except KeyError:
            raise CalabashError(
                f"node {name!r} does not exist in the cluster of {self.node_count} nodes",
                reason=Reason.NOT_FOUND,
                hint="check the name of the node",
            ) from None

    # ---- changes -----------------------------------------------------------------------------------------------------------
    def touch(self, *rows: int) -> None:
        """Append rows that have changed to the change log, and drop its older half if it has grown too long."""
        self.log += rows
        if len(self.log) > max(_LOG_MIN, 4 * self.node_count):
            cut = len(self.log) // 2
            del self.log[:cut]
            self.log_start += cut

    def amounts(self, shape: Shape, row: int, device: int) -> tuple[int, int]:
        """Return the compute in milli and the memory in MiB that a shape takes of one device.

        Raises:
            CalabashError: the device does not have the shape's MIG profiles.
        """
        if shape.mig_profile:
            found = self.mig_profiles(row, device, shape.mig_profiles)
            if found is None:
                raise CalabashError(
                    f"device {device} of {self.names[row]} has no MIG profile {shape.mig_profile}",
                    reason=Reason.SELECTOR_MISMATCH,
                    hint="request a profile that the device lists",
                )
            geometry, profiles = found
            slice_mib = int(self.gpu_mib[row, device]) // geometry.slices
            memory = sum(min(p.memory_mib, slice_mib * p.slices * p.compute // p.instance_compute) for p in profiles)
            return sum(WHOLE_MILLI * p.compute // geometry.compute for p in profiles), memory
        if shape.whole:
            return WHOLE_MILLI, self.gpu_mib.item(row, device)
        return shape.gpu_milli, shape.gpu_memory_mib

    def slices_max(self, shape: Shape, row: int, device: int) -> int:
        """Return the largest number of slices of the shape's sharing mode that fit on a device; 0 for no limit."""
        return shape.gpu_slices_max * int(self.gpu_services[row, device])

    def place(self, shape: Shape, placement: NodePlacement, *, held: bool = False) -> None:
        """Take the resources of a placement: subtract them from the free amounts.

        Args:
            held: the request runs already, so existing MIG instances at the positions of its placement are its own.

        Raises:
            CalabashError: the resources are not free. Nothing is changed then.
        """
        row = placement.node
        if self.cpu_free_milli[row] < shape.cpu_milli or self.memory_free_mib[row] < shape.memory_mib:
            self._refuse(row, "CPU or memory")
        if len(placement.devices) != shape.gpu_count or len(set(placement.devices)) != shape.gpu_count:
            self._refuse(row, f"{len(placement.devices)} devices given, {shape.gpu_count} different devices needed")
        if shape.gpu_count:
            taken = [(device, *self._checked(shape, placement, device, held=held)) for device in placement.devices]
            mode = self.mode_code(shape.mode or (MODE_MIG if shape.mig_profile else ""))
            total = whole = 0
            free_milli, free_mib, users = self.gpu_free_milli[row], self.gpu_free_mib[row], self.gpu_users[row]
            for device, milli, mib in taken:
                free = free_milli.item(device)
                whole += free == WHOLE_MILLI and milli > 0
                free_milli[device] = free - milli
                if mib:
                    free_mib[device] = free_mib.item(device) - mib
                users[device] = users.item(device) + 1
                if shape.gpu_slices:
                    self.gpu_slices[row, device] += shape.gpu_slices
                if mode:
                    if not self.gpu_pinned[row, device]:
                        self.gpu_mode[row, device] = mode
                    self.has_modes = True
                total += milli
            self._count_best_effort(shape, placement, 1)
            self.gpu_sum_milli[row] -= total
            self.gpu_whole_free[row] -= whole
            if shape.mig_profile:
                self.change_mig_states(shape, placement, with_instance)
                for name in shape.mig_profiles:
                    if name in self.mig_coming:
                        self.mig_coming.remove(name)
            self.kind_users[row, shape.kind] += 1
        self.cpu_free_milli[row] -= shape.cpu_milli
        self.memory_free_mib[row] -= shape.memory_mib
        self.users[row] += 1
        self.touch(row)

    def release(self, shape: Shape, placement: NodePlacement) -> None:
        """Release the resources that ``place`` took.

        Raises:
            CalabashError: no such placement was taken.
        """
        row = placement.node
        if self.users[row] < 1:
            self._refuse(row, "release of a placement that was never taken")
        total = whole = 0
        free_milli, free_mib, users = self.gpu_free_milli[row], self.gpu_free_mib[row], self.gpu_users[row]
        for device in placement.devices:
            milli, mib = self.amounts(shape, row, device)
            left, free = users.item(device) - 1, free_milli.item(device) + milli
            if left < 0 or free > WHOLE_MILLI:
                self._refuse(row, f"release of device {device} that was never taken")
            free_milli[device] = free
            whole += free == WHOLE_MILLI and milli > 0
            if mib:
                free_mib[device] = free_mib.item(device) + mib
            users[device] = left
            if shape.gpu_slices:
                self.gpu_slices[row, device] -= shape.gpu_slices
            if self.has_modes and not left and not self.gpu_pinned[row, device]:
                self.gpu_mode[row, device] = MODE_UNSET
            total += milli
        if shape.mig_profile:
            self.change_mig_states(shape, placement, without_instance)
        if shape.gpu_count:
            self._count_best_effort(shape, placement, -1)
            self.kind_users[row, shape.kind] -= 1
        self.gpu_sum_milli[row] += total
        self.gpu_whole_free[row] += whole
        self.cpu_free_milli[row] += shape.cpu_milli
        self.memory_free_mib[row] += shape.memory_mib
        self.users[row] -= 1
        self.touch(row)

    def _count_best_effort(self, shape: Shape, placement: NodePlacement, change: int) -> None:
        if shape.best_effort:
            self.gpu_best_effort[placement.node, list(placement.devices)] += change

    def _checked(self, shape: Shape, placement: NodePlacement, device: int, *, held: bool) -> tuple[int, int]:
        """Return the ``amounts`` that the placement takes of a device, after a check that they are free.

        Args:
            held: the request runs already, as in ``place``.

        Raises:
            CalabashError: the amounts are not free, or the device is in another sharing mode.
        """
        row = placement.node
        if not 0 <= device < self.gpu_count.item(row):
            self._refuse(row, f"device {device} does not exist")
        milli, mib = self.amounts(shape, row, device)
        if self.gpu_free_milli.item(row, device) < milli:
            self._refuse(row, f"device {device} has {self.gpu_free_milli[row, device]} milli free, {milli} needed")
        if self.gpu_free_mib.item(row, device) < mib:
            self._refuse(row, f"device {device} has {self.gpu_free_mib[row, device]} MiB free, {mib} needed")
        if shape.gpu_slices_max:
            slices, most = int(self.gpu_slices[row, device]), self.slices_max(shape, row, device)
            if slices + shape.gpu_slices > most:
                self._refuse(
                    row, f"device {device} has {slices} of at most {most} slices, {shape.gpu_slices} more needed"
                )
        if self.has_modes or shape.mode:
            mode = self.mode_code(shape.mode or (MODE_MIG if shape.mig_profile else ""))
            pinned = bool(self.gpu_pinned[row, device])
            # A request that runs already keeps its mode although its device is pinned to another one now.
            free = held if pinned else self.gpu_users[row, device] == 0
            if not free and self.gpu_mode[row, device] != mode:
                self._refuse(row, f"device {device} is in another sharing mode")
        if shape.mig_profile:
            places = dict(zip(placement.devices, placement.mig_places, strict=False)).get(device, ())
            if not self.mig_fits_at(row, device, shape.mig_profiles, places, held=held):
                at = ", ".join(str(place.start) for place in places)
                self._refuse(row, f"device {device} has no free place for MIG profile {shape.mig_profile} at {at}")
        return milli, mib

    def _refuse(self, row: int, what: str) -> NoReturn:
        raise CalabashError(
            f"{self.names[row]} cannot take this placement: {what}",
            reason=Reason.NO_CAPACITY,
            hint="schedule the request again: the node has changed since the placement was planned",
        )

    def add_node(self, node: NodeSpec) -> int:
        """Add a node, in the row of a removed node or as the last row. Returns the row, which never changes.

        Raises:
            CalabashError: a node of that name exists, or the node has more devices than ``gpus_per_node_max``.
        """
        if node.name in self.row_of:
            raise CalabashError(f"node {node.name} exists already", reason=Reason.CONFLICT, hint="remove it first")
        if len(node.gpus) > self.width:
            raise CalabashError(
                f"node {node.name} has {len(node.gpus)} devices, the limit of the cluster is {self.width} per node",
                hint="create the cluster with a larger gpus_per_node_max",
            )
        row = next((row for row in self.removed if not self.users[row]), -1)
        if row < 0:
            self._append([node])
            row = self.node_count - 1
        else:
            self._replace(row, node)
        self.cordon(row, schedulable=True)
        return row

    def cordon(self, row: int, *, schedulable: bool = False) -> None:
        """Take a node out of service, or into service if ``schedulable``. Placements on the node are not affected."""
        self.schedulable[row] = schedulable
        self.has_cordoned = not bool(self.schedulable.all())
        self.touch(row)

    def set_health(self, row: int, device: int, *, healthy: bool) -> None:
        """Set the health of a device; an unhealthy device takes no new placements. Placements on it are not affected."""
        self.gpu_healthy[row, device] = healthy
        self.has_unhealthy = not bool(self.gpu_healthy.all())
        self.touch(row)
