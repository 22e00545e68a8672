"""Gives a corpus of hostile inputs to every reader and parser, within limits of time and memory.

    python -m benchmarks.hostile [--jobs 16] [--only KIND] [--every 3] [--seed 0] [--write FOLDER]

`texts.py`, `images.py` and `files.py` make the inputs from a seed; `readers.py` says which reader takes which kind; `watched.py` runs a
reader on an input and notes everything that it must not do. `--write FOLDER` keeps the corpus, with a list of names, sizes and hashes.
"""
