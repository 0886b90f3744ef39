"""Outgoing webhooks: programs outside learn of events by signed HTTP requests."""
