"""Training runs: optimizers, schedules, strategies, the step, its loop and its state on disk."""
