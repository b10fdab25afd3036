"""Lean clients over `protocol`."""
