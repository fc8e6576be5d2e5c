"""Commands around the papers, python -m tools.NAME, and their parts."""
