"""Where a run plays: its fleet as the learner sees it, with opponents, shaped rewards and results of episodes."""
