"""Where messages wait: one interface (`interface.py`), one package or module for each backend."""
