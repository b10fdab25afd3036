"""``naiad check``: what is wrong with a model repository, where, why, and what would be right."""
