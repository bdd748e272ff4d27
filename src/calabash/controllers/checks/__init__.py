"""Connectivity checks of a VPC: ports in its subnets send packets to test whether the network works as configured."""
