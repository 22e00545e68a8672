"""A training run's checkpoints over its steps, shown: page, plots and CSV."""
