"""A folder that the processes of model instances have on their path."""
