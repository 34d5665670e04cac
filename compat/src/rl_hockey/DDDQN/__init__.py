"""DDDQN."""
