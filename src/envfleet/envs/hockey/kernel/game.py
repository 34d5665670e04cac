"""Hockey as kernels: two players, or one against the scripted player."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.constants import Mode
from envfleet.envs.hockey.kernel.play import begin, command, play, see, swing
from envfleet.envs.hockey.kernel.shapes import NUM_BODIES, NUM_MOVING, NUM_PAIRS, ZERO
from envfleet.envs.hockey.kernel.solver import MAX_CONTACTS
from envfleet.envs.hockey.rules import draw_mode
from envfleet.envs.hockey.settings import check_settings
from envfleet.kernels import Kernel, array, outlined


def _floats(size: int) -> Any:
    return array(size, np.float32)


def _flags(size: int) -> Any:
    return array(size, np.uint8)  # numba has no arrays of bools in records


def _whole(size: int) -> Any:
    return array(size, np.int64)


_T = NDArray[Any]


class Hockey(Kernel):
    """The game of `envfleet.envs.hockey.HockeyEnv` without Box2D, equal bit for bit on Linux x86-64.

    Observations `(2, 18)` and actions `(2, 4)` of both players, each from the view of the player. The reward is that of
    player one; infos have `reward_two` and the `mode`. A goal ends a game as `terminated`,
    the limit of its mode as `truncated`: after 251 steps, or 81 in the training modes.

    The physics reimplements Box2D's rules (E. Catto, zlib license; see NOTICE); Box2D itself is not needed.
    """

    observation_space: ClassVar[Any] = spaces.Box(-np.inf, np.inf, (2, 18), np.float32)
    action_space: ClassVar[Any] = spaces.Box(-1.0, 1.0, (2, 4), np.float32)
    max_episode_steps: ClassVar[int | None] = c.TIME_LIMIT_STEPS[Mode.NORMAL] + 1
    render_fps = c.STEPS_PER_SECOND
    has_own_params = True
    info_fields = ("mode", "winner", *c.REWARD_TERMS, "reward_two", *(f"{term}_two" for term in c.REWARD_TERMS))

    class State(Kernel.State):
        """The game (winner, hold counters, rewards), then bodies, pairs, contacts, and memory for computations."""

        mode: int  # that is played; the parameter is what is played next
        clock: int  # steps played
        winner: int  # 1 or -1
        limit: int  # steps
        can_hold: bool
        is_first_order: bool  # not `is_reversed` of `envfleet.envs.hockey.world`; no game changes it
        reward_closeness_to_puck: float
        reward_touch_puck: float
        reward_puck_direction: float
        reward_two: float
        reward_closeness_to_puck_two: float
        reward_touch_puck_two: float
        reward_puck_direction_two: float
        phases: _T = array(2, np.float64)
        holds: _T = _whole(2)
        actions: _T = _floats(8)

        # Of racket one, racket two, the puck, and what stands.
        x: _T = _floats(NUM_BODIES)
        y: _T = _floats(NUM_BODIES)
        cosine: _T = _floats(NUM_BODIES)
        sine: _T = _floats(NUM_BODIES)
        center_x: _T = _floats(NUM_BODIES)
        center_y: _T = _floats(NUM_BODIES)
        angle: _T = _floats(NUM_BODIES)
        velocity_x: _T = _floats(NUM_BODIES)
        velocity_y: _T = _floats(NUM_BODIES)
        spin: _T = _floats(NUM_BODIES)
        progress: _T = _floats(NUM_BODIES)
        start_x: _T = _floats(NUM_BODIES)
        start_y: _T = _floats(NUM_BODIES)
        start_angle: _T = _floats(NUM_BODIES)
        # Boxes: low x, low y, high x, high y.
        near: _T = array((NUM_BODIES, 4), np.float32)  # around the present sweep
        stored: _T = array((NUM_BODIES, 4), np.float32)
        # Of those that move.
        force_x: _T = _floats(NUM_MOVING)
        force_y: _T = _floats(NUM_MOVING)
        torque: _T = _floats(NUM_MOVING)
        linear_damping: _T = _floats(NUM_MOVING)
        angular_damping: _T = _floats(NUM_MOVING)
        still_s: _T = _floats(NUM_MOVING)
        is_awake: _T = _flags(NUM_MOVING)
        is_new: _T = _flags(NUM_MOVING)
        is_moved: _T = _flags(NUM_MOVING)
        waiting: _T = _whole(NUM_MOVING)
        island: _T = _whole(NUM_MOVING)

        num_pairs: np.int64
        pairs: _T = _whole(NUM_PAIRS)
        is_paired: _T = _flags(NUM_PAIRS)
        is_touching: _T = _flags(NUM_PAIRS)
        is_enabled: _T = _flags(NUM_PAIRS)
        is_timed: _T = _flags(NUM_PAIRS)
        is_taken: _T = _flags(NUM_PAIRS)
        is_face_b: _T = _flags(NUM_PAIRS)
        num_events: _T = _whole(NUM_PAIRS)
        num_points: _T = _whole(NUM_PAIRS)
        time: _T = _floats(NUM_PAIRS)
        normal_x: _T = _floats(NUM_PAIRS)
        normal_y: _T = _floats(NUM_PAIRS)
        plane_x: _T = _floats(NUM_PAIRS)
        plane_y: _T = _floats(NUM_PAIRS)
        point_x: _T = _floats(2 * NUM_PAIRS)
        point_y: _T = _floats(2 * NUM_PAIRS)
        feature: _T = _whole(2 * NUM_PAIRS)
        normal_impulse: _T = _floats(2 * NUM_PAIRS)
        tangent_impulse: _T = _floats(2 * NUM_PAIRS)

        # Contacts of the island that is being solved.
        c_pair: _T = _whole(MAX_CONTACTS)
        c_a: _T = _whole(MAX_CONTACTS)
        c_b: _T = _whole(MAX_CONTACTS)
        c_points: _T = _whole(MAX_CONTACTS)
        c_normal_x: _T = _floats(MAX_CONTACTS)
        c_normal_y: _T = _floats(MAX_CONTACTS)
        c_k11: _T = _floats(MAX_CONTACTS)
        c_k12: _T = _floats(MAX_CONTACTS)
        c_k22: _T = _floats(MAX_CONTACTS)
        c_i11: _T = _floats(MAX_CONTACTS)
        c_i12: _T = _floats(MAX_CONTACTS)
        c_i22: _T = _floats(MAX_CONTACTS)
        c_arm_ax: _T = _floats(2 * MAX_CONTACTS)
        c_arm_ay: _T = _floats(2 * MAX_CONTACTS)
        c_arm_bx: _T = _floats(2 * MAX_CONTACTS)
        c_arm_by: _T = _floats(2 * MAX_CONTACTS)
        c_normal_mass: _T = _floats(2 * MAX_CONTACTS)
        c_tangent_mass: _T = _floats(2 * MAX_CONTACTS)
        c_bias: _T = _floats(2 * MAX_CONTACTS)
        c_normal_impulse: _T = _floats(2 * MAX_CONTACTS)
        c_tangent_impulse: _T = _floats(2 * MAX_CONTACTS)

        simplex_size: np.int64
        simplex_metric: np.float32
        simplex_a: _T = _whole(4)
        simplex_b: _T = _whole(4)
        simplex_ax: _T = _floats(4)
        simplex_ay: _T = _floats(4)
        simplex_bx: _T = _floats(4)
        simplex_by: _T = _floats(4)
        simplex_x: _T = _floats(4)
        simplex_y: _T = _floats(4)
        simplex_share: _T = _floats(4)

        seen: _T = array(18, np.float64)  # rounded to float32

    class Params(Kernel.Params):
        """Mode of play and controllers.

        Attributes:
            mode: Mode from the next game on: 0 `NORMAL`, 1 `TRAIN_SHOOTING`, 2 `TRAIN_DEFENSE`.
            shooting_share: Probability that a game is `TRAIN_SHOOTING` instead of `mode`.
            defense_share: Probability that a game is `TRAIN_DEFENSE` instead of `mode`.
            keep_mode: True if rackets catch and hold the puck. Otherwise hold counters are 0, and the shoot action does
                nothing.
            starter: Player that gets the puck in `NORMAL`: 1 or 2, or 0 for a random one in each game.
            player_one: Controller of the left side, read in every step: 0 the action, 1 or 2 the weak or strong
                scripted player.
            player_two: Controller of the right side.
        """

        mode: int = 0
        keep_mode: bool = True
        starter: int = 0
        player_one: int = c.AGENT
        player_two: int = c.AGENT
        shooting_share: float = 0.0
        defense_share: float = 0.0

    @classmethod
    def check_params(cls, values: Mapping[str, NDArray[Any]]) -> None:
        """Check that parameters are valid settings of `HockeyTwoEnv`."""
        check_settings(values)

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Begin a game."""
        _clear(state)
        state.mode = draw_mode(params.mode, params.shooting_share, params.defense_share, rng)
        begin(state, rng, state.mode, params.starter, params.keep_mode)

    @staticmethod
    def step(
        state: State, action: NDArray[np.float32], rng: np.random.Generator, params: Params
    ) -> tuple[float, bool, bool]:
        """Play one step."""
        for player in range(2):
            for number in range(4):
                command(state, player, number, action[player, number])
        return _step(state, rng, params)

    @staticmethod
    def observe(state: State, out: NDArray[np.float32]) -> None:
        """Write the observation of each player."""
        for player in range(2):
            for number in range(18):
                out[player, number] = see(state, player, number)

    @staticmethod
    def render(state: State, params: Params) -> NDArray[np.uint8]:
        """Draw the game, `(480, 600, 3)`."""
        from envfleet.envs.hockey.rendering import Screen

        poses = [(float(state.x[k]), float(state.y[k]), float(state.angle[k])) for k in range(2)]
        return Screen(None).paint(poses, (float(state.x[2]), float(state.y[2])))


class HockeyOne(Hockey):
    """`Hockey` for player one against the strong scripted player: observations `(18,)`, actions `(4,)`.

    Pass `player_two=1` for the weak scripted player.
    """

    observation_space: ClassVar[Any] = spaces.Box(-np.inf, np.inf, (18,), np.float32)
    action_space: ClassVar[Any] = spaces.Box(-1.0, 1.0, (4,), np.float32)

    class Params(Hockey.Params):
        """Parameters of `Hockey`, with the strong scripted player as player two."""

        player_two: int = c.STRONG

    @staticmethod
    def step(
        state: Hockey.State, action: NDArray[np.float32], rng: np.random.Generator, params: Hockey.Params
    ) -> tuple[float, bool, bool]:
        """Play one step."""
        for number in range(4):
            command(state, 0, number, action[number])
            state.actions[4 + number] = np.float32(0)
        return _step(state, rng, params)

    @staticmethod
    def observe(state: Hockey.State, out: NDArray[np.float32]) -> None:
        """Write the observation of player one."""
        for number in range(18):
            out[number] = see(state, 0, number)


def _step(state: Any, rng: Any, params: Any) -> tuple[float, bool, bool]:
    if params.player_one != c.AGENT:
        swing(state, rng, 0, params.player_one)
    if params.player_two != c.AGENT:
        swing(state, rng, 1, params.player_two)
    play(state)
    reward = c.WIN_REWARD * state.winner + state.reward_closeness_to_puck
    return reward, state.winner != 0, state.clock > state.limit


@outlined
def _clear(state: Any) -> None:
    """Clear the whole state, including memory for computations, so that equal games have equal states.

    Loops over elements compile faster than assignments to slices, which numba compiles for every size and number.
    """
    for k in range(18):
        state.seen[k] = 0.0
    for k in range(8):
        state.actions[k] = ZERO
    for player in range(2):
        state.phases[player], state.holds[player] = 0.0, 0
    for body in range(NUM_BODIES):
        state.sine[body] = state.angle[body] = state.progress[body] = ZERO
        state.velocity_x[body] = state.velocity_y[body] = state.spin[body] = ZERO
    for body in range(NUM_MOVING):
        state.force_x[body] = state.force_y[body] = state.torque[body] = ZERO
        state.linear_damping[body] = state.angular_damping[body] = state.still_s[body] = ZERO
        state.is_moved[body] = state.waiting[body] = state.island[body] = 0

    state.num_pairs = 0
    for pair in range(NUM_PAIRS):
        state.pairs[pair] = state.num_events[pair] = state.num_points[pair] = 0
        state.is_paired[pair] = state.is_touching[pair] = state.is_enabled[pair] = 0
        state.is_timed[pair] = state.is_taken[pair] = state.is_face_b[pair] = 0
        state.time[pair] = ZERO
        state.normal_x[pair] = state.normal_y[pair] = state.plane_x[pair] = state.plane_y[pair] = ZERO
    for point in range(2 * NUM_PAIRS):
        state.point_x[point] = state.point_y[point] = ZERO
        state.normal_impulse[point] = state.tangent_impulse[point] = ZERO
        state.feature[point] = 0
    _clear_solver(state)


def _clear_solver(state: Any) -> None:
    for k in range(MAX_CONTACTS):
        state.c_pair[k] = state.c_a[k] = state.c_b[k] = state.c_points[k] = 0
        state.c_normal_x[k] = state.c_normal_y[k] = ZERO
        state.c_k11[k] = state.c_k12[k] = state.c_k22[k] = ZERO
        state.c_i11[k] = state.c_i12[k] = state.c_i22[k] = ZERO
    for point in range(2 * MAX_CONTACTS):
        state.c_arm_ax[point] = state.c_arm_ay[point] = state.c_arm_bx[point] = state.c_arm_by[point] = ZERO
        state.c_normal_mass[point] = state.c_tangent_mass[point] = state.c_bias[point] = ZERO
        state.c_normal_impulse[point] = state.c_tangent_impulse[point] = ZERO

    state.simplex_size = 0
    state.simplex_metric = ZERO
    for k in range(4):
        state.simplex_a[k] = state.simplex_b[k] = 0
        state.simplex_ax[k] = state.simplex_ay[k] = state.simplex_bx[k] = state.simplex_by[k] = ZERO
        state.simplex_x[k] = state.simplex_y[k] = state.simplex_share[k] = ZERO
