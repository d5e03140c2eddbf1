"""Figures of runs on car surfaces: ``flarepp plot``."""

from physicsnemo_flarepp.commands import run

if __name__ == "__main__":
    run("plot")
