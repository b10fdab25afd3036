"""Models as decorated functions and classes, for ``naiad serve app.py``."""
