"""Two engines compared case by case, from run directories or baselines alone. Knows no pytest, no torch.

    sheets.py    one engine's scores of one test, by case; what was asked of it
    sides.py     "reports/RUN:ENGINE" or a baseline file  →  one side of a comparison
    asked.py     what the two sides were asked differently: reasons to refuse, and to warn
    changes.py   the comparison: metrics, slices, cases, verdicts
    tracks.py    run directories  →  the checkpoints of training runs, by step
    timeline.py  curves of metrics along a track, the best checkpoint of each, flips of cases
    baselines.py a side kept as a small file

report/compare_*.py and report/timeline_*.py show it; commands/compare.py and commands/timeline.py are the commands.
"""
