"""Appliances inside tenant networks: NFV gateways and HAProxy pairs for L7 load balancers, as pure functions of the objects.

An appliance is a pair of replicas, each a network namespace with programs. ``replicas`` computes the replicas that the
networks require. ``nft``, ``keepalived``, ``conntrackd`` and ``haproxy`` render the configuration of these programs,
and ``rendering`` combines them. ``calabash.controllers.appliances`` starts the programs. Tenants cannot inject
configuration: it contains only numbers, addresses, labels, and the path of a health check, which is validated. A
renderer gets the objects of a single VPC.
"""
