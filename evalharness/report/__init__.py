"""Reports of a run directory: report.md, report.csv, samples.csv and the closing lines on a terminal.

    reading.py       run.json and the rows of samples.jsonl      →  collecting.py   one pass, texts let go
    tables.py        pandas tables                               →  findings.py     what the numbers are worth, in words
    markdown.py, score_tables.py, settings.py, csv_files.py, terminal.py            the outputs
    safe_text.py     hostile text made safe, used by all of them
    writing.py       `write_reports`, `terminal_summary`, on tables that `tables.load_tables` gave

Importing this package is cheap: pandas and tabulate are imported with `evalharness.report.writing`, when a report is due.
"""
