"""Island 2: who runs next, with whom. Pure decisions with `now` in nanoseconds."""
