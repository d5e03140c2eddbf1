"""Figures of runs on 2D benchmarks: ``flarepp plot``."""

from physicsnemo_flarepp.commands import run

if __name__ == "__main__":
    run("plot")
