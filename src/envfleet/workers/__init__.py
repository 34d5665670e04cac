"""The engine of Python sub-environments: in this thread, in threads, in worker processes, on other machines."""
