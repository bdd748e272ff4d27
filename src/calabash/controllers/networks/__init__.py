"""The controller that keeps OVN equal to the stored networks."""
