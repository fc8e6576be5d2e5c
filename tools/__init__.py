"""Commands around the papers, python -m tools.NAME, and their parts."""
import shapes  # noqa: F401, first of all: Ctrl-C while importing is one line
