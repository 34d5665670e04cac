"""The import name of the client of the turbofan challenge."""

from student_client.leaderboard import get_leaderboard_score
from student_client.plotting import plot_observations, plot_rewards
from student_client.student_gym_env import StudentGymEnv, create_student_gym_env
from student_client.student_gym_env_vectorized import StudentGymEnvVectorized, create_student_gym_env_vectorized

__all__ = [
    "StudentGymEnv",
    "StudentGymEnvVectorized",
    "create_student_gym_env",
    "create_student_gym_env_vectorized",
    "get_leaderboard_score",
    "plot_observations",
    "plot_rewards",
]
