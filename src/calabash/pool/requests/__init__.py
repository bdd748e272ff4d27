"""Requests before they are granted: admission, limits, explanations and run times."""
