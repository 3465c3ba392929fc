"""Optimizers, schedules and what else `model.fit` is given."""
