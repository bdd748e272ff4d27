"""What a VPC promises, tried with packets of its own: ports of the platform's on the hosts, and ``ovn-trace``."""
