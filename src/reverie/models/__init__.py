"""Models that handlers may call: a language model and an embedder, behind one interface (`interface.py`)."""
