"""A comparison of two runs, shown: terminal, Markdown, CSV and an HTML page."""
