"""A fleet in the shape of somebody else's vector environment, for code that was written for theirs.

`envfleet.adapters.gymnasium` has the shape of Gymnasium's `AsyncVectorEnv` and `SyncVectorEnv`, `envfleet.adapters.sb3`
that of Stable-Baselines3's `VecEnv`, `envfleet.adapters.ray_env_wrapper` that of the package RayEnvWrapper, and
`envfleet.adapters.student_client` that of the turbofan's client for a service. The other way go
`envfleet.adapters.pettingzoo`, PettingZoo's environments as fleets, and `envfleet.adapters.old_gym`, environments of
the old `gym` as Gymnasium's. Importing this package imports none of them.
"""
