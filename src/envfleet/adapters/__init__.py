"""A fleet in the shape of somebody else's vector environment, for code that was written for theirs.

`envfleet.adapters.gymnasium` has the shape of Gymnasium's `AsyncVectorEnv` and `SyncVectorEnv`, `envfleet.adapters.sb3`
that of Stable-Baselines3's `VecEnv`. The other way go `envfleet.adapters.pettingzoo`, PettingZoo's environments as
fleets, and `envfleet.adapters.old_gym`, environments of the old `gym` as Gymnasium's. Importing this package imports
none of them.
"""
