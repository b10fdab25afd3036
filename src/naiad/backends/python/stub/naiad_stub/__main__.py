"""Run by the server, with the folder of this package on the path."""

import sys

from .process import main

arguments = sys.argv[1:]
# A model may read the command line, as ``unittest.main`` does; in Triton's process it is empty.
sys.argv = [""]
main(arguments)
