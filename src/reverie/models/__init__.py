"""Models that handlers may ask: a language model and embeddings, behind one interface (`interface.py`)."""
