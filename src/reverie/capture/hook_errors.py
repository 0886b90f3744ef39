"""Stub."""
def recent_problems(folder: str) -> list[str]: return []
