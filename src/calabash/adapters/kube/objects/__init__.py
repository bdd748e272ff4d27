"""Objects of the API server as narrow types."""
