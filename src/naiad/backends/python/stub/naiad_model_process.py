"""What the server runs in another interpreter: ``naiad_model_process.py DESCRIPTOR...``."""

import runpy
import sys

if __name__ == "__main__":
    # The folder of this file comes first on the path, where a model's own modules should be.
    sys.path.append(sys.path.pop(0))
    runpy.run_module("naiad_stub", run_name="__main__")
