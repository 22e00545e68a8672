"""Prompts made of rows: Jinja templates, worked examples (few-shot), choices to score. Knows nothing of pytest and engines."""

from evalharness.prompts.shots import FewShot, Shot, few_shot
from evalharness.prompts.template import Template, template

__all__ = ["FewShot", "Shot", "Template", "few_shot", "template"]
