"""Errors of trained runs on 2D benchmarks: ``flarepp evaluate``."""

from physicsnemo_flarepp.commands import run

if __name__ == "__main__":
    run("evaluate")
