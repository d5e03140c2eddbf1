"""Errors and forces of trained runs on car surfaces: ``flarepp evaluate``."""

from physicsnemo_flarepp.commands import run

if __name__ == "__main__":
    run("evaluate")
