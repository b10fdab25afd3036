"""Backends whose models run in processes of their own."""
