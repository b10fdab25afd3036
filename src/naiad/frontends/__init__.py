"""Sockets: each folder speaks one protocol to the engine."""
