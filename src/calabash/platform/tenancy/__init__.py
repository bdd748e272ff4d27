"""Tenants, projects, users and their membership."""
