"""IFEval's checks against lm-eval's, strict and loose, on many random texts: how many differ, and what both take.

    python -m benchmarks.text_scores [--texts 12000] [--seed 1]

Nothing is downloaded: the model of sentences comes from an installed package, and langdetect gets a fixed seed on both sides.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from pathlib import Path

from evalharness.scores import ifeval
from tests.scores.written import write_sentence_model, written


def main() -> None:
    """Print the number of checks, of those that differ, and the seconds of both checkers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_sentence_model(Path(folder))
        os.environ["NLTK_DATA"] = folder
        logging.disable(logging.ERROR)
        import langdetect
        from lm_eval.tasks.ifeval import utils

        langdetect.DetectorFactory.seed = 0
        num_checks, different, seconds = 0, [], [0.0, 0.0]
        for text, names, values in written(options.texts, options.seed):
            document = {"key": 0, "instruction_id_list": names, "prompt": "", "kwargs": values}
            began = time.process_time()
            oracle = utils.process_results(document, [text])
            between = time.process_time()
            ours = ifeval(text, names, values)
            seconds = [seconds[0] + between - began, seconds[1] + time.process_time() - between]
            num_checks += len(names)
            if (list(ours.strict), list(ours.loose)) != (oracle["inst_level_strict_acc"], oracle["inst_level_loose_acc"]):
                different.append((text, names))
    print(f"{num_checks:,} checks, {len(different)} texts differ; CPU seconds: lm-eval {seconds[0]:.1f}, ours {seconds[1]:.1f}")
    for text, names in different[:5]:
        print(repr(text), *names)


if __name__ == "__main__":
    main()
