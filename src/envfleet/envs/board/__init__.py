"""Board games of pgx (S. Koyamada and others) as kernels, with masks of legal actions."""

from envfleet.envs.board.connect_four import ConnectFour, ConnectFourOne
from envfleet.envs.board.masked import MaskedConnectFourOne, MaskedPlay2048
from envfleet.envs.board.play_2048 import Play2048

__all__ = ["ConnectFour", "ConnectFourOne", "MaskedConnectFourOne", "MaskedPlay2048", "Play2048"]
