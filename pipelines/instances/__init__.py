"""Documents to pre-training instances: pairs, masks and records."""
