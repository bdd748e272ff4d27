"""The manager of an InfiniBand fabric (UFM) by its REST API: partitions by P_Key and the ports in them.

What lives here: questions, answers and their strict reading. What never lives here: whose a partition is to be.
"""

from calabash.adapters.ufm.client import Pkey, PkeyMember, UfmClient, UfmServer

__all__ = ["Pkey", "PkeyMember", "UfmClient", "UfmServer"]
