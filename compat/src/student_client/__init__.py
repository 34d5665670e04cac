"""The import name of the client of the turbofan challenge."""

from envfleet.adapters.student_client.single_env import StudentGymEnv, create_student_gym_env, get_leaderboard_score
from envfleet.adapters.student_client.vector_env import StudentGymEnvVectorized, create_student_gym_env_vectorized
from envfleet.envs.turbofan.plots import EngineLog, plot_degradation, plot_rewards, plot_sensors

__all__ = [
    "EngineLog",
    "StudentGymEnv",
    "StudentGymEnvVectorized",
    "create_student_gym_env",
    "create_student_gym_env_vectorized",
    "get_leaderboard_score",
    "plot_degradation",
    "plot_rewards",
    "plot_sensors",
]
