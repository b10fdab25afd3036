"""The metrics front end: one page for Prometheus on a port of its own."""
