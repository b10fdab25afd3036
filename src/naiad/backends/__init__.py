"""Island 3: one folder per framework."""
