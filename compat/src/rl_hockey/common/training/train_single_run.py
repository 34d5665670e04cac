"""`train_single_run`; as a script, it trains `configs/curriculum_simple.json` on 4 games at once."""

from envfleet.training import train_single_run

__all__ = ["train_single_run"]

if __name__ == "__main__":
    train_single_run("configs/curriculum_simple.json", num_envs=4)
