"""Proof, hop by hop, that what is served is still what the PyTorch model answers."""
