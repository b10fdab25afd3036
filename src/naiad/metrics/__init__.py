"""Island 5: metric families and their exposition."""
