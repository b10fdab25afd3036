"""The process of a model instance: it loads ``model.py``, and gives it requests.

Runs on Python 3.10 and newer with numpy 1.26 or 2, and imports nothing else that is not in Python.
`wire`, `region` and `channel` are the server's end of the connection too.
"""
