"""Capture what an agent sees and says."""
