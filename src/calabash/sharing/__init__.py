"""How one device is divided: one module per sharing mode, each behind the same small protocol.

What lives here: for every mode the rule of what still fits on a device, how the device is then divided, and which
edits a container or program needs to get its slice. Functions of their arguments: no clock, no I/O, no hardware.
What never lives here: which device is chosen (that is the scheduler) and what enforces a slice (the agent and the
native libraries). A new mode is one new module with a ``MODE``; ``registry`` finds it, nobody else names it.
"""
