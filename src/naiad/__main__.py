"""``python -m naiad`` is the ``naiad`` command."""

from naiad.cli.main import main

main(prog_name="naiad")
