"""The import name of the package RayEnvWrapper: environments on Ray workers as a Stable-Baselines3 `VecEnv`."""

from RayEnvWrapper.CustomRayRemoteEnv import CustomRayRemoteVectorEnv
from RayEnvWrapper.CustomWrapperRayVecEnv import WrapperRayVecEnv

__all__ = ["CustomRayRemoteVectorEnv", "WrapperRayVecEnv"]
