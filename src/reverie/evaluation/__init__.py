"""Measures how well a search finds what was said, with conversations and questions of the user's own."""
