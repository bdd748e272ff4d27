"""Data formats and names in objects of the API server: plans, quantities, tenants, shards, labels and annotations."""
