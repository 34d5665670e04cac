"""Fleets in the shape of other libraries' vector environments, for code that was written for those.

`gymnasium` has the shape of Gymnasium's `AsyncVectorEnv` and `SyncVectorEnv`, `sb3` that of Stable-Baselines3's
`VecEnv`. In the other direction, `pettingzoo` makes fleets of PettingZoo's environments, and `old_gym` makes
environments of the old `gym` Gymnasium's. Importing this package imports none of those libraries.
"""
