"""`python -m vecenv.run_training` is `python -m envfleet.rllib.run_training`."""

import envfleet.rllib.run_training  # noqa: F401
