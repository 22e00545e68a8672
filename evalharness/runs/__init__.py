"""The run directory: journal, records, run.json, samples.jsonl, locks. Knows no pytest."""
