"""HTTP client of the API server."""
