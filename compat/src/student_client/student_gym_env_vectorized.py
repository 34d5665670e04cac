"""Several engines at once, under the name of the module that notebooks import."""

from envfleet.adapters.student_client.vector_env import StudentGymEnvVectorized, create_student_gym_env_vectorized

__all__ = ["StudentGymEnvVectorized", "create_student_gym_env_vectorized"]
