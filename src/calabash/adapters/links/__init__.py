"""Network namespaces and their interfaces, over netlink, which is used only here.

Linux only, and for root. Work inside a namespace is done by a thread that enters it and then ends, so that all other
threads of the process stay in the host's network.
"""
