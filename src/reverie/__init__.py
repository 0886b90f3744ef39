"""Reverie, the memory scheduler for AI agents."""
