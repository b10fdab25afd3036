"""The user's nn.Module with its example inputs, shared by export and verify."""
