"""How far the run is, at every moment: what each process counts, and what the reporting process shows, writes down and estimates."""
