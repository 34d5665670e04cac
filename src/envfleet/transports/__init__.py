"""Where groups run: in this thread, in other threads, in worker processes."""
