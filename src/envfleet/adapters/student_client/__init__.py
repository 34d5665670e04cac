"""Clients of a service's episode protocol, in the shape of the turbofan's student client.

Unlike the other adapters they hold no fleet of their own: the service has it.
"""
