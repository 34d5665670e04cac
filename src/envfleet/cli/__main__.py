"""`python -m envfleet.cli` is the command `envfleet`."""

from envfleet.cli import main

main()
