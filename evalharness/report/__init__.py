"""Reports of run directories: report.md, report.csv, samples.csv, the closing lines on a terminal, comparisons.

    tables.py        run.json and samples.jsonl in one pass → tables; findings.py: verdict and caveats
    markdown.py, score_tables.py, csv.py, terminal.py, html/     the outputs of one run
    compare/, timeline/                                          those of several
    text.py          hostile text made safe, used by all of them
    writing.py       writes all files of a run: `write_reports`, `terminal_summary`

Importing this package is cheap: numpy and tabulate are imported with `evalharness.report.writing`, when a report is due.
"""
