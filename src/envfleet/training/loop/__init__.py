"""Training loop: learners, curriculum, evaluations, and the trainer."""
