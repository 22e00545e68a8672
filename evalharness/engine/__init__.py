"""Turns requests into results: template, prompt, stream, stop policy, cache. The same on every backend; no torch, no pytest."""
