"""Reports of run directories: report.md, report.csv, samples.csv, the closing lines on a terminal, comparisons.

    reading.py       run.json and the rows of samples.jsonl      →  collecting.py   one pass, texts let go
    tables.py        counts, and means with their intervals      →  findings.py     what the numbers are worth, in words
    markdown.py, score_tables.py, settings.py, csv_files.py, terminal.py            the outputs
    compare_*.py     a comparison (`comparison/`) on a terminal, as Markdown and CSV; ci_summary.py  a run in short
    overlays.py      photos with true and predicted objects, for spot checks; used by evals' output files
    safe_text.py     hostile text made safe, used by all of them
    writing.py       `write_reports`, `terminal_summary`, on tables that `tables.load_tables` gave

Importing this package is cheap: numpy and tabulate are imported with `evalharness.report.writing`, when a report is due.
"""
