"""The import name of the package RayEnvWrapper."""

from envfleet.adapters.ray_env_wrapper import WrapperRayVecEnv

__all__ = ["WrapperRayVecEnv"]
