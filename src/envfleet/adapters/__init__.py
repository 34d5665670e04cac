"""A fleet in the shape of somebody else's vector environment, for code that was written for theirs.

`envfleet.adapters.gymnasium` has the shape of Gymnasium's `AsyncVectorEnv` and `SyncVectorEnv`, `envfleet.adapters.sb3`
that of Stable-Baselines3's `VecEnv`. `envfleet.adapters.pettingzoo` goes the other way: PettingZoo's environments as
fleets. Importing this package imports none of them.
"""
