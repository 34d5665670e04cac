"""Step environments that a service hosts: this script starts one on this machine, connects to it and plays.

    pip install 'envfleet[serve]'
    python remote.py --env CartPole-v1 --num-envs 8 --steps 200

With a service that somebody else runs, only the lines from `envfleet.connect` on are yours:
`python remote.py --url http://host:8001 --token ef_…`.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import envfleet

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--num-envs", type=int, default=8)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--url", help="address of a service; by default this script starts one")
parser.add_argument("--token", help="with --url; by default the variable ENVFLEET_TOKEN")
args = parser.parse_args()


@contextlib.contextmanager
def local_service() -> Iterator[tuple[str, str]]:
    """Run `envfleet serve` in an empty folder; its first lines are the address and the administrator's token."""
    command = [sys.executable, "-m", "envfleet", "serve", "--env", args.env, "--port", "0"]
    with tempfile.TemporaryDirectory() as folder:
        service = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        try:
            words = (service.stdout.readline() + service.stdout.readline()).split()
            yield next(w for w in words if w.startswith("http")), next(w for w in words if w.startswith("ef_"))
        finally:
            service.terminate()
            service.wait()


with contextlib.nullcontext((args.url, args.token)) if args.url else local_service() as (url, token):
    with envfleet.connect(url, args.env, args.num_envs, token=token, record_episodes=True) as fleet:
        observations, infos = fleet.reset(seed=0)
        returns = []
        for _ in range(args.steps):
            observations, rewards, terminated, truncated, infos = fleet.step(fleet.action_space.sample())
            if "episode" in infos:
                returns += infos["episode"]["r"][infos["_episode"]].tolist()
        print(fleet)
        print(f"{len(returns)} episodes, mean return {sum(returns) / max(1, len(returns)):.1f}")
