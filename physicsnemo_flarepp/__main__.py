"""``python -m physicsnemo_flarepp``, the same as ``flarepp``."""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main())
