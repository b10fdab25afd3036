"""The ``python`` backend: models written for Triton's Python backend, one process per instance.

``stub/naiad_stub`` is what runs in that process. It needs numpy and nothing of Naiad, since the
process may be another interpreter's; what both sides say to each other is written once, there.
"""
