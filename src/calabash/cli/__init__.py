"""Commands and printers: a thin client of the stand-alone pool, the simulated node and the cluster simulator.

Nothing is decided here. Commands translate what people type into one request, call, and print. Every heavy import
happens inside the command that needs it, because help and completion must answer at once. Data goes to stdout,
everything else to stderr; tables are for people, ``-o json`` and ``-o yaml`` carry raw units and stable names.
"""
