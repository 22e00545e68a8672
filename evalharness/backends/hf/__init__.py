"""The transformers backend: batches, decoding step by step, and live weights."""
