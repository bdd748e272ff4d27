"""Configuration of conntrackd: replicates translated connections to the kernel of the other replica.

Connections therefore survive a failover. The messages are sent through the VPC, from the port of one replica to that of
the other. They need no encryption: OVN's port security prevents that another port forges the sender, and the messages
contain only data of this VPC.
"""

from __future__ import annotations

from calabash.net.appliances.model import INSIDE, NfvReplica
from calabash.net.appliances.nft import SYNC_PORT

_ENTRIES_MAX = 262144


def configuration(replica: NfvReplica, directory: str) -> str:
    """Return the configuration file. ``directory``, an absolute path, will contain conntrackd's socket and lock."""
    member = replica.member
    own = (member.own, member.peer, member.virtual)
    return f"""Sync {{
    Mode FTFW {{
        DisableExternalCache on
        StartupResync on
    }}
    UDP {{
        IPv4_address {member.own}
        IPv4_Destination_Address {member.peer}
        Port {SYNC_PORT}
        Interface {INSIDE}
        Checksum on
    }}
    Options {{
        TCPWindowTracking off
    }}
}}
General {{
    Systemd off
    HashSize 8192
    HashLimit {_ENTRIES_MAX}
    Syslog off
    LogFile off
    LockFile {directory}/conntrackd.lock
    UNIX {{
        Path {directory}/conntrackd.ctl
    }}
    NetlinkBufferSize 2097152
    NetlinkBufferSizeMaxGrowth 8388608
    NetlinkOverrunResync on
    NetlinkEventsReliable on
    Filter From Userspace {{
        Protocol Accept {{
            TCP
            UDP
            ICMP
        }}
        Address Ignore {{
{chr(10).join(f"            IPv4_address {address}" for address in (*own, "127.0.0.1"))}
        }}
    }}
}}
"""
