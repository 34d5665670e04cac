"""PPO learner for large minibatches."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import torch

from envfleet.rllib.dense import fuse_dense_layers
from envfleet.rllib.internals import (
    ENTROPY_KEY,
    LEARNER_RESULTS_KL_KEY,
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
    LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
    POLICY_LOSS_KEY,
    VF_LOSS_KEY,
    PPOTorchLearner,
)
from envfleet.rllib.passes import uninitialized_memory

_MEANS = (
    POLICY_LOSS_KEY,
    VF_LOSS_KEY,
    LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
    ENTROPY_KEY,
    LEARNER_RESULTS_KL_KEY,
)


class PackedPPOLearner(PPOTorchLearner):
    """RLlib's PPO learner for batches of 100,000 samples and more.

    A minibatch larger than `rows_per_pass` passes the network in parts, and the learner sums their gradients:
    activations stay in the processor's cache and take the memory of one part. The update is the same except for
    rounding. Logged losses, entropy and KL are those of the whole minibatch; the explained variance is the mean over
    the parts.

    Dense layers and their activations are fused (`FusedSequential`). A batch of one minibatch is not shuffled, since
    that would only change the order of a sum.

    A custom loss (`compute_loss_for_module`) must be a mean over rows, as PPO's is; otherwise set `rows_per_pass=None`.
    """

    def build(self) -> None:
        """Make the module and its optimizers."""
        super().build()
        self.module.foreach_module(lambda _, module: fuse_dense_layers(module.unwrapped()))

    def update(self, *args: Any, minibatch_size: int | None = None, **kwargs: Any) -> Any:
        """Learn from rollouts; arguments are those of RLlib's learners."""
        training_data = kwargs.get("training_data")
        episodes = kwargs.get("episodes") if training_data is None else training_data.episodes
        if episodes:
            num_samples = sum(map(len, episodes))
            if minibatch_size is None or minibatch_size >= num_samples:
                minibatch_size = num_samples
                kwargs["shuffle_batch_per_epoch"] = False
        with uninitialized_memory():
            return super().update(*args, minibatch_size=minibatch_size, **kwargs)

    def _update(self, batch: dict[str, Any], **kwargs: Any) -> Any:
        (module_id, whole), *others = batch.items()
        limit = self.config.rows_per_pass
        is_special = others or self._grad_scalers is not None or self._torch_compile_complete_update
        if limit is None or len(whole) <= limit or is_special:
            return super()._update(batch, **kwargs)
        return self._update_in_parts(module_id, whole, -(-len(whole) // limit))

    def _update_in_parts(self, module_id: str, whole: Any, num_parts: int) -> Any:
        for optimizer in self._optimizer_parameters:
            optimizer.zero_grad(set_to_none=True)
        module = self.module[module_id]
        bounds = [len(whole) * part // num_parts for part in range(num_parts + 1)]
        figures, total = dict.fromkeys(_MEANS, 0.0), torch.zeros((), device=self.device)
        for start, stop in itertools.pairwise(bounds):
            share = (stop - start) / len(whole)
            part = {module_id: whole[start:stop]}
            waits = stop < len(whole) and hasattr(module, "no_sync")  # Learners exchange gradients with the last part
            with module.no_sync() if waits else contextlib.nullcontext():
                forward = self.module.forward_train(part)
                losses = self.compute_losses(fwd_out=forward, batch=part)
                (losses[module_id] * share).backward()
            total += losses[module_id].detach() * share
            for name in _MEANS:
                figure = torch.as_tensor(self.metrics.peek((module_id, name), default=0.0))
                figures[name] += float(figure.detach()) * share
        self.metrics.log_dict(figures, key=module_id, window=1)
        gradients = self.postprocess_gradients({name: param.grad for name, param in self._params.items()})
        self.apply_gradients(gradients)
        return forward, {module_id: total}, {}
