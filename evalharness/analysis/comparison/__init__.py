"""Two engines compared case by case, from run directories or baselines alone. Knows neither pytest nor torch.

    sheets.py    one engine's scores of one test, by case, with the settings of its requests
    sides.py     "reports/RUN:ENGINE" or a baseline file  →  one side of a comparison; writes baselines
    pairing.py   whether two sides can be compared: common cases, differences in settings and judging, what is refused
    compare.py   the comparison: metrics, slices, cases, verdicts
    timeline.py  the checkpoints of training runs by step: curves of metrics, the best checkpoint of each, flips of cases

report/compare/ and report/timeline/ show them; cli/commands/compare.py has the commands.
"""
