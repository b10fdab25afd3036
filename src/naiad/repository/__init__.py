"""Island 4: models on disk."""
