"""The MAX backend, in process."""
