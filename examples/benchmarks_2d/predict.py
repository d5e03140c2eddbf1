"""Predicted fields of test cases, or at the points of a file: ``flarepp predict``."""

from physicsnemo_flarepp.commands import run

if __name__ == "__main__":
    run("predict")
