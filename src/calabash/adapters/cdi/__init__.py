"""Specification files of the Container Device Interface (CDI), which tell a container runtime what a device name adds.

``edits`` has the container edits as types, ``files`` writes, lists and removes the files. Which container gets which
device is decided elsewhere.

A runtime reads the directory when its file watcher reports a change. containerd's watcher reacts to rename, remove and
write, but not to create. A spec is therefore always written to a temporary file in the same directory and renamed, so
that no runtime reads half of it. Callers use a fresh device name each time and never give a name a second meaning,
because a runtime may have missed a change.
"""

from calabash.adapters.cdi.edits import ContainerEdits, DeviceNode, MountEdit
from calabash.adapters.cdi.files import SpecFile, list_specs, remove_spec, sweep_leftovers, write_spec

__all__ = [
    "ContainerEdits",
    "DeviceNode",
    "MountEdit",
    "SpecFile",
    "list_specs",
    "remove_spec",
    "sweep_leftovers",
    "write_spec",
]
