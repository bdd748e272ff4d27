"""Resource claims on a node: the DRA driver."""
