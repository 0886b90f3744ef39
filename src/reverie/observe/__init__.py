"""Seeing what happened: how tasks stand, and hearing when they end."""
