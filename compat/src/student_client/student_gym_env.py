"""One engine, and the score."""

from envfleet.adapters.student_client.single_env import StudentGymEnv, create_student_gym_env, get_leaderboard_score

__all__ = ["StudentGymEnv", "create_student_gym_env", "get_leaderboard_score"]
