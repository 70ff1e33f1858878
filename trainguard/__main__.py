"""`python -m trainguard`: the same as the command `trainguard`."""

from trainguard.command.cli import app

if __name__ == "__main__":
    app(prog_name="trainguard")
