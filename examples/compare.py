"""Train several models on one set and tabulate them: ``flarepp compare``."""

from physicsnemo_flarepp.commands import run

if __name__ == "__main__":
    run("compare")
