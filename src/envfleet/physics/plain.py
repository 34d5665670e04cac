"""A task run as the plain Python it is, on MuJoCo's own Python objects: for debuggers, rehearsals and comparisons."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from envfleet.kernels.plain import PlainEnv, PlainRecord
from envfleet.physics.simulations import import_mujoco
from envfleet.physics.task import TaskSpec, arguments_of


class PlainTask(PlainEnv):
    """One sub-environment of a task, run uncompiled.

    Args:
        spec: The task.
        params: Values `(1,)` of its parameters.
    """

    spec: TaskSpec

    def __init__(self, spec: TaskSpec, params: NDArray[Any] | None = None) -> None:
        super().__init__(spec, params)
        self.data = import_mujoco().MjData(spec.model)

    def _call(self, function: Any, **more: Any) -> Any:
        values = {"data": self.data, "model": self.spec.model, "state": self.state, "rng": self.rng}
        values |= {"params": self.params, **more}
        return function(*(values[name] for name in arguments_of(function)))

    def _reset(self) -> Any:
        import mujoco

        mujoco.mj_resetData(self.spec.model, self.data)
        result = self._call(self.spec.reset)
        mujoco.mj_forward(self.spec.model, self.data)
        if self.spec.after_reset is not None:
            self._call(self.spec.after_reset)
        return result

    def _step(self, action: Any) -> Any:
        import mujoco

        if self.spec.before_step is None:
            self.data.ctrl[:] = action
        else:
            self._call(self.spec.before_step, action=action)
        mujoco.mj_step(self.spec.model, self.data, nstep=self.spec.frame_skip)
        mujoco.mj_rnePostConstraint(self.spec.model, self.data)
        return self._call(self.spec.step, action=action)

    def _observe(self, state: PlainRecord, out: Any) -> Any:
        return self._call(self.spec.observe, state=state, out=out)
