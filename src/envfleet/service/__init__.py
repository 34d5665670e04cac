"""A service that hosts environments for many people; `envfleet serve` starts it. The client half never imports this."""
