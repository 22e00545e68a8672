"""The types of the Python API: cases, requests, options, results, errors, hooks, images. Imports neither torch nor pytest."""
