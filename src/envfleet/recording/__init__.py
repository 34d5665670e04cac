"""Recording of a fleet's episodes as a dataset of Minari."""

from envfleet.recording.record import Recording, record

__all__ = ["Recording", "record"]
