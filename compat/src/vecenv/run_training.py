"""`python -m vecenv.run_training` is `python -m envfleet.rllib.run_training`."""

from envfleet.rllib.run_training import main

if __name__ == "__main__":
    main()
