"""From an nn.Module to a model version in a model repository."""
