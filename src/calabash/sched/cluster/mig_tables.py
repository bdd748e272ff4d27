"""MIG geometries by device model, for simulated clusters, which have no driver to read them from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from calabash.model.mig import MigGeometry, MigProfile


def _seven(sizes: Mapping[str, tuple[str, float]]) -> MigGeometry:
    """Return a geometry of eight memory and seven compute slices (A100 and later).

    Args:
        sizes: (suffix of the profile name, usable memory in GiB) by instance size.
    """
    shapes: dict[str, tuple[int, int, tuple[int, ...], int]] = {
        "1g": (1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        "1g.double": (1, 2, (0, 2, 4, 6), 4),
        "2g": (2, 2, (0, 2, 4), 3),
        "3g": (3, 4, (0, 4), 2),
        "4g": (4, 4, (0,), 1),
        "7g": (7, 8, (0,), 1),
    }
    return MigGeometry(slices=8, compute=7, profiles=tuple(_profiles(shapes, sizes)))


def _four(sizes: Mapping[str, tuple[str, float]]) -> MigGeometry:
    """Return a geometry of four memory and four compute slices (A30); ``sizes`` as in ``_seven``."""
    shapes: dict[str, tuple[int, int, tuple[int, ...], int]] = {
        "1g": (1, 1, (0, 1, 2, 3), 4),
        "2g": (2, 2, (0, 2), 2),
        "4g": (4, 4, (0,), 1),
    }
    return MigGeometry(slices=4, compute=4, profiles=tuple(_profiles(shapes, sizes)))


def _profiles(
    shapes: Mapping[str, tuple[int, int, tuple[int, ...], int]], sizes: Mapping[str, tuple[str, float]]
) -> Iterable[MigProfile]:
    for shape, (compute, slices, starts, limit) in shapes.items():
        suffix, gib = sizes[shape]
        name = f"{compute}g.{suffix}"
        memory_mib = int(gib * 1024)
        yield MigProfile(name=name, compute=compute, slices=slices, starts=starts, limit=limit, memory_mib=memory_mib)
        if shape == "1g" or (shape == "2g" and compute == 2 and "4g" in shapes and "7g" not in shapes):
            yield MigProfile(
                name=f"{name}+me", compute=compute, slices=slices, starts=starts, limit=1, memory_mib=memory_mib,
                media=True,
            )  # fmt: skip


GEOMETRIES: Mapping[str, MigGeometry] = {
    "A30": _four({"1g": ("6gb", 5.81), "2g": ("12gb", 11.69), "4g": ("24gb", 23.44)}),
    "A100-40": _seven(
        {
            "1g": ("5gb", 4.75), "1g.double": ("10gb", 9.62), "2g": ("10gb", 9.62),
            "3g": ("20gb", 19.5), "4g": ("20gb", 19.5), "7g": ("40gb", 39.25),
        }
    ),
    "A100-80": _seven(
        {
            "1g": ("10gb", 9.5), "1g.double": ("20gb", 19.5), "2g": ("20gb", 19.5),
            "3g": ("40gb", 39.25), "4g": ("40gb", 39.25), "7g": ("80gb", 79.0),
        }
    ),
    "H100": _seven(
        {
            "1g": ("10gb", 9.75), "1g.double": ("20gb", 19.62), "2g": ("20gb", 19.62),
            "3g": ("40gb", 39.5), "4g": ("40gb", 39.5), "7g": ("80gb", 79.25),
        }
    ),
    "H200": _seven(
        {
            "1g": ("18gb", 16.0), "1g.double": ("35gb", 32.5), "2g": ("35gb", 32.5),
            "3g": ("71gb", 69.5), "4g": ("71gb", 69.5), "7g": ("141gb", 140.0),
        }
    ),
    "GH200": _seven(
        {
            "1g": ("12gb", 11.0), "1g.double": ("24gb", 23.0), "2g": ("24gb", 23.0),
            "3g": ("48gb", 46.5), "4g": ("48gb", 46.5), "7g": ("96gb", 93.0),
        }
    ),
    "GB200": _seven(
        {
            "1g": ("23gb", 22.0), "1g.double": ("47gb", 45.5), "2g": ("47gb", 45.5),
            "3g": ("93gb", 91.5), "4g": ("93gb", 91.5), "7g": ("186gb", 183.5),
        }
    ),
    "B200": _seven(
        {
            "1g": ("23gb", 22.0), "1g.double": ("45gb", 44.0), "2g": ("45gb", 44.0),
            "3g": ("90gb", 89.0), "4g": ("90gb", 89.0), "7g": ("180gb", 178.0),
        }
    ),
}  # fmt: skip


def geometry_of(model: str, memory_mib: int) -> MigGeometry | None:
    """Return the geometry of a device model, named as by drivers or traces; None if the model has no MIG.

    Args:
        model: for example ``NVIDIA A100-SXM4-80GB`` or ``H200``.
        memory_mib: memory of the device, to distinguish variants of a model.
    """
    name = model.upper()
    if "A100" in name:
        return GEOMETRIES["A100-80" if "80" in name.replace("A100", "") or memory_mib > 50_000 else "A100-40"]
    found = max((key for key in GEOMETRIES if key in name), key=len, default=None)  # GH200 contains H200
    return GEOMETRIES[found] if found else None
