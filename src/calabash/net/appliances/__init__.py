"""Appliances inside tenant networks: NFV gateways and HAProxy pairs for L7 load balancers, as pure functions of the objects.

``replicas`` computes the replicas; ``nft``, ``keepalived``, ``conntrackd`` and ``haproxy`` render the configuration of their
programs; ``rendering`` combines them. Nothing is started here. Configuration contains numbers, addresses and labels only; the
one free text, the path of a health check, is validated before it is written. A renderer gets objects of a single VPC.
"""
