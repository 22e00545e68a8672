"""Spreads work units over xdist's workers and GPUs, and watches the workers: scheduler, heartbeats, crashes."""
