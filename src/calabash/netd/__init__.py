"""The network controller: keeps OVN equal to what the pool's book of networks describes; it may end at any moment."""
