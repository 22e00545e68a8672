"""Goes on with or judges again what a run has recorded: resume, rescore, merge."""
