"""Games between two players, many at once."""

from envfleet.training.games.matches import Games, MatchConfig, play
from envfleet.training.games.players import LoadedPlayer, Player, load_player

__all__ = ["Games", "LoadedPlayer", "MatchConfig", "Player", "load_player", "play"]
