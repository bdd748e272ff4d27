"""The network controller: keeps OVN equal to the networks that the pool's book describes, one process that may end at any moment."""
