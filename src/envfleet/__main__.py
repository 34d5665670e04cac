"""`python -m envfleet` is the command `envfleet`."""

from envfleet.cli import main

main()
