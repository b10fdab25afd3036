"""The composition root: settings, assembly, signals, logging."""
