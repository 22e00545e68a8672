"""Scores of answers and of likelihoods: pure functions of an answer and what is right. Knows neither engines, files nor pytest."""
