"""Figures and a self-contained HTML page from the results of a study."""
