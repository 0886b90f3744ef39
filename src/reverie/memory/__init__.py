"""What an agent remembers: the store's interface (`interface.py`) and its implementations."""
