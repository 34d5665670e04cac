"""Who plays against the learner: where opponents come from, which of them is drawn, the pool of snapshots."""
