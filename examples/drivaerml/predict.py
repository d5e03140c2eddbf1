"""Predicted fields and forces on any surface: ``flarepp predict``."""

from physicsnemo_flarepp.commands import run

if __name__ == "__main__":
    run("predict")
