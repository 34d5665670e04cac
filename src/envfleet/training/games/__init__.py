"""Games between two players: who sits where, and how many games are played at once."""

from envfleet.training.games.matches import Games, Rink, play
from envfleet.training.games.players import Player, Seated, seat_player

__all__ = ["Games", "Player", "Rink", "Seated", "play", "seat_player"]
