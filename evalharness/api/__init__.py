"""What users type and get back: cases, requests, options, results, errors, hooks, images. Knows neither torch nor pytest nor run files."""
