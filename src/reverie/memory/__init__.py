"""The memories of agents: the interface of a memory store (`interface.py`) and its implementations."""
