"""Command-line interface: a thin client of the pool's API, and the commands that start programs of a cluster.

Commands translate options into one request and print the reply; decisions are made by the pool. Slow modules are imported
inside the command that needs them, because help and completion must be fast. Data goes to stdout, messages go to stderr.
Tables are for people; ``-o json`` and ``-o yaml`` have base units and stable names.
"""
