"""Proof that every hop gives the same answers."""
