"""From a configuration file to a trained agent: curriculum, opponents, one training loop, evaluation, records."""
