"""Authentication and quotas."""
