"""Client of the manager of an InfiniBand fabric (UFM): partitions by P_Key and the ports in them.

The members of a partition are decided elsewhere.
"""

from calabash.adapters.ufm.client import Pkey, PkeyMember, UfmClient, UfmServer

__all__ = ["Pkey", "PkeyMember", "UfmClient", "UfmServer"]
