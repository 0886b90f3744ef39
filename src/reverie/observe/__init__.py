"""Observation: status, events, metrics, health and alerts."""
