"""The Ray backend: Ray places the workers, which then share the driver's memory or are reached over TCP.

Imported only when it is used.
"""
