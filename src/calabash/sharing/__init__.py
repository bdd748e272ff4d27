"""Sharing modes: rules for dividing one device into slices. Each mode is one module behind the protocol ``SharingMode``.

A mode decides if a request fits on a device, computes the slice and the division of the device, and lists the edits that a
container or program needs to use its slice. The code is pure: no clock, no I/O, no hardware. The scheduler chooses the device;
the node agent and the native libraries enforce the slices. A new mode is a new module that defines ``MODE``; ``registry`` finds
it, and no other code lists the modes.
"""
