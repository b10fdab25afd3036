"""Island 1: wire formats, sans-I/O. Bytes in, values out."""
