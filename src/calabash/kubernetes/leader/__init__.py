"""Leader election by a Lease object of the Kubernetes API server: of several replicas, one leads at a time."""
