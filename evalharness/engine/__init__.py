"""Turns requests into results: chat template, prompt, stream, stop policy, cache. The same on every backend; imports no torch and no pytest."""
