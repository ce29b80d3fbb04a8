"""How one update is computed, as a value: the step plan and what executes it."""
