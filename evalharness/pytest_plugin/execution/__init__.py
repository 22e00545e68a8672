"""Runs the evals of one process: plans work units, keeps their engine busy, hands each test its generations."""
