"""Blackjack: draw cards towards 21, not beyond, and more than the dealer."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.frames import draw_original
from envfleet.kernels import Kernel

_SUITS = "CDHS"
_FACES = "JQK"


class Blackjack(Kernel):
    """Gymnasium's Blackjack-v1 as a kernel: the same draws, rewards and ends.

    Observation: a tuple of the player's sum, the dealer's open card (1 is an ace) and whether the player has an ace
    that counts as 11. Actions: 0 stick, 1 hit. Cards are drawn from an endless deck. Terminated when the player sticks
    or has more than 21; reward 1 for a win, -1 for a loss.

    Source: example 5.1 of R. Sutton and A. Barto, "Reinforcement Learning: An Introduction".
    """

    observation_space = spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2)))
    action_space = spaces.Discrete(2)
    render_fps = 4

    class State(Kernel.State):
        """Sums with every ace as 1, whether there is an ace among them, and how many cards; the open card's picture."""

        player_sum: int
        player_has_ace: bool
        player_cards: int
        dealer_sum: int
        dealer_has_ace: bool
        dealer_cards: int
        open_card: int
        open_suit: int
        open_face: int

    class Params(Kernel.Params):
        """Gymnasium's arguments of the same names, by default as in its registry."""

        natural: bool = False  # a win with two cards that make 21 pays 1.5
        sab: bool = True  # such two cards win unless the dealer has the same, as in the book; overrides `natural`

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Deal two cards to the dealer, two to the player, and choose pictures."""
        first, second = _draw_card(rng), _draw_card(rng)
        state.open_card = first
        state.dealer_sum = first + second
        state.dealer_has_ace = (first == 1) | (second == 1)
        state.dealer_cards = 2
        third, fourth = _draw_card(rng), _draw_card(rng)
        state.player_sum = third + fourth
        state.player_has_ace = (third == 1) | (fourth == 1)
        state.player_cards = 2
        state.open_suit = int(rng.integers(4))
        state.open_face = int(rng.integers(3)) if first == 10 else 0

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Take a card, or let the dealer play."""
        if action == 1:
            card = _draw_card(rng)
            state.player_sum = state.player_sum + card
            state.player_has_ace = state.player_has_ace | (card == 1)
            state.player_cards = state.player_cards + 1
            is_bust = state.player_sum > 21
            return -1.0 if is_bust else 0.0, is_bust
        while _count(state.dealer_sum, state.dealer_has_ace) < 17:
            card = _draw_card(rng)
            state.dealer_sum = state.dealer_sum + card
            state.dealer_has_ace = state.dealer_has_ace | (card == 1)
            state.dealer_cards = state.dealer_cards + 1
        player_total = _count(state.player_sum, state.player_has_ace)
        dealer_total = _count(state.dealer_sum, state.dealer_has_ace)
        dealer_total = 0 if dealer_total > 21 else dealer_total
        reward = 1.0 if player_total > dealer_total else (0.0 if player_total == dealer_total else -1.0)
        is_natural = (player_total == 21) & (state.player_cards == 2)
        if params.sab and is_natural and not (dealer_total == 21 and state.dealer_cards == 2):
            return 1.0, True
        if params.natural and not params.sab and is_natural and reward == 1.0:
            return 1.5, True
        return reward, True

    @staticmethod
    def observe(state: State, out: Any) -> None:
        """Write what the player sees."""
        out[0] = _count(state.player_sum, state.player_has_ace)
        out[1] = state.open_card
        out[2] = state.player_has_ace & (state.player_sum <= 11)

    @staticmethod
    def render(state: State, params: Params) -> NDArray[Any]:
        """Draw Gymnasium's frame, `(500, 600, 3)`; since Gymnasium 1.4 `(376, 384, 3)`."""
        import pygame
        from gymnasium.envs.toy_text import blackjack

        pygame.font.init()
        ace = int(state.player_has_ace)
        names = {1: "A", 10: _FACES[state.open_face]}
        return draw_original(
            blackjack.BlackjackEnv,
            getattr(blackjack, "SCREEN_SIZE", (600, 500)),  # since Gymnasium 1.4
            player=[1] * ace + [state.player_sum - ace],
            dealer=[state.open_card],
            dealer_top_card_suit=_SUITS[state.open_suit],
            dealer_top_card_value_str=names.get(state.open_card, str(state.open_card)),
        )


def _draw_card(rng: np.random.Generator) -> int:
    """Draw 1 (ace) to 10; 10 is four times as likely, as it stands for jack, queen and king, too."""
    return min(int(rng.integers(13)) + 1, 10)


def _count(total: int, has_ace: bool) -> int:
    """Return what a hand counts, one ace as 11 if that is not too much."""
    return total + 10 if has_ace and total <= 11 else total
