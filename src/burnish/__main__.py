"""`python -m burnish` is the command line."""

from burnish.cli import app

app(prog_name="burnish")
