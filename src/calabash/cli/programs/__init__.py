"""Commands that start the programs of a cluster."""
