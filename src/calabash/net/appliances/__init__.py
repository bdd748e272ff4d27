"""Programs of the platform inside tenant networks: NFV gateways and pairs of HAProxy, as functions of the book.

What each replica is (``plans``), and the text of what it runs: nftables, keepalived, conntrackd, HAProxy. Nothing here starts
anything. A text holds numbers, addresses and labels only: what a tenant has named freely (the path of a check) is checked
letter by letter before it is written, and nothing of another VPC is ever in reach of a renderer.
"""
