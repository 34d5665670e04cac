"""`train_single_run`; as a script, it trains `configs/curriculum_simple.json` on 4 games at once."""

import torch

from rl_hockey.common.training.train_run import train_run as train_single_run

__all__ = ["train_single_run"]

if __name__ == "__main__":
    torch.set_num_threads(1)  # networks of this size are fastest so
    train_single_run("configs/curriculum_simple.json", num_envs=4)
