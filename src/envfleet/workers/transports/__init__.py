"""Ways to a worker: threads of this process, worker processes, workers that Ray places."""
