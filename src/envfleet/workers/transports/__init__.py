"""Transports: threads of this process, worker processes, and workers that Ray places."""
