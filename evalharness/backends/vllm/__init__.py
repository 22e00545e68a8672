"""The vLLM backend, in process: settings, sampling, images, and live weights."""
