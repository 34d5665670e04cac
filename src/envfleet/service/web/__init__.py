"""Pages for people: a leaderboard, a participant's own page, replays of episodes, and administration."""

from envfleet.service.web.site import install

__all__ = ["install"]
