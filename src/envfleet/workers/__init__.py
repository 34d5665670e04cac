"""Engine of Python sub-environments: in the calling thread, in threads, in processes, or placed by Ray."""
