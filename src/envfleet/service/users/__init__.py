"""Users: tokens, accounts, quotas and competitions."""
