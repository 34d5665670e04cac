"""An observer that logs to Weights & Biases; see own-agents.md."""

import wandb

from envfleet.training.events import Began, Ended, Evaluated, Event, Learned, Observer


class WandbObserver(Observer):
    def on_event(self, event: Event) -> None:
        match event:
            case Began():
                self.run = wandb.init(project="envfleet", name=event.run_name, id=event.run_name, resume="allow")
            case Learned():
                self.run.log(dict(event.figures), step=event.transitions)
            case Evaluated():
                self.run.log({"score": event.score, "is_best": event.is_best}, step=event.transitions)
            case Ended():
                self.run.finish()
