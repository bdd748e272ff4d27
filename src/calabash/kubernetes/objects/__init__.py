"""Data formats in objects of the API server: plans, requests, quantities, names."""
