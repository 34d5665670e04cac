"""The import name of the package RayEnvWrapper."""  # noqa: N999  the name is theirs

from envfleet.adapters.ray_env_wrapper import WrapperRayVecEnv

__all__ = ["WrapperRayVecEnv"]
