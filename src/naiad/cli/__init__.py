"""The `naiad` command: one file per verb."""
