"""Models behind one interface (`interface.py`): embedders, rerankers, language models."""
