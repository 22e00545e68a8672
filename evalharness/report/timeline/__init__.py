"""A training run's checkpoints over its steps, shown: page, picture and CSV."""
