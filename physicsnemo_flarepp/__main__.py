"""``python -m physicsnemo_flarepp``, the same as ``flarepp``."""

from physicsnemo_flarepp.commands import run

if __name__ == "__main__":
    run()
