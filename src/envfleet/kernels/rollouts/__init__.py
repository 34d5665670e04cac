"""Fused rollouts: many steps of a fleet, and the policy that acts in them, in one compiled call."""
