"""Network controller: reconciles the rows of OVN with the networks of a pool."""
