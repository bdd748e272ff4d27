"""Network namespaces and what is plugged into them, by netlink; nothing else of the product speaks it.

Linux only, and for root. Whatever is done inside a namespace is done by a thread that enters it and then ends, so that no
other thread of this process is ever anywhere but on the host's network.
"""
