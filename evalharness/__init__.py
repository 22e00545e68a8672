"""pytest for post-training checkpoints."""
