"""Backend that answers each input as the output of the same number."""
