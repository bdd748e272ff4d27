"""Notifications: rules, collection and delivery."""
