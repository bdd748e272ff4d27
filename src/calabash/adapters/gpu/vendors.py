"""Registry of GPU vendors.

A vendor is an ``Opener``: a function from ``DriverOptions`` to a ``GpuDriver``. Built-in vendors are named here and
imported only when opened. Others come from installed packages through the entry point group ``calabash.gpu_vendors``,
or from the caller's own mapping, which takes precedence over both.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points

from calabash.adapters.gpu.protocol import DriverOptions, GpuDriver, Opener
from calabash.model.errors import CalabashError, Reason

ENTRY_POINT_GROUP = "calabash.gpu_vendors"
DEFAULT_VENDOR = "nvidia"
_OURS = {DEFAULT_VENDOR: "calabash.adapters.gpu.nvidia.driver:open_driver"}


def _load(target: str) -> Opener:
    module, _, name = target.partition(":")
    opener: Opener = getattr(import_module(module), name)
    return opener


def vendor_names(extra: Mapping[str, Opener] | None = None) -> tuple[str, ...]:
    """Return the names of all known vendors, sorted.

    Args:
        extra: further vendors by name; they take precedence over vendors of the same name.
    """
    installed = (point.name for point in entry_points(group=ENTRY_POINT_GROUP))
    return tuple(sorted({*_OURS, *installed, *(extra or {})}))


def find_opener(name: str, extra: Mapping[str, Opener] | None = None) -> Opener:
    """Return the opener of a vendor, searched for first in ``extra``. Raises CalabashError(NOT_FOUND)."""
    if extra is not None and name in extra:
        return extra[name]
    if name in _OURS:
        return _load(_OURS[name])
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        opener: Opener = point.load()
        return opener
    raise CalabashError(
        f"unknown GPU vendor {name!r}",
        reason=Reason.NOT_FOUND,
        hint=f"known vendors: {', '.join(vendor_names(extra))}",
    )


def open_driver(
    name: str = DEFAULT_VENDOR,
    options: DriverOptions | None = None,
    extra: Mapping[str, Opener] | None = None,
) -> GpuDriver:
    """Open the driver of a vendor, which the caller closes; ``extra`` as for ``vendor_names``."""
    return find_opener(name, extra)(options or DriverOptions())


def open_present(
    options: DriverOptions | None = None, extra: Mapping[str, Opener] | None = None
) -> tuple[GpuDriver, ...]:
    """Open the drivers of all known vendors that have cards on this machine; ``extra`` as for ``vendor_names``."""
    drivers = []
    for name in vendor_names(extra):
        try:
            drivers.append(open_driver(name, options, extra))
        except CalabashError as error:
            if error.reason is not Reason.NO_DEVICES:
                for driver in drivers:
                    driver.close()
                raise
    return tuple(drivers)
