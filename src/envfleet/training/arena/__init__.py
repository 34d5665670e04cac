"""Arena of a run: the learner's view of the fleet, with opponents, shaped rewards and results of episodes."""
