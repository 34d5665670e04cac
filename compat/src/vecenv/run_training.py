"""`python -m vecenv.run_training` is the command `envfleet rllib compare`, with its options."""

import sys

from envfleet.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["rllib", "compare"]
    main()
