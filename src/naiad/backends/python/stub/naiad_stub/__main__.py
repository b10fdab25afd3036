"""Run by the server, with the folder of this package on the path."""

import sys

from .process import main

main(sys.argv[1:])
