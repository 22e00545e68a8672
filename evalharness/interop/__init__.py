"""Runs made of the samples of other tools, and their files made of ours: lm-evaluation-harness, Inspect, lmms-eval."""
