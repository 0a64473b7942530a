"""``python -m simulations --help`` tells what there is."""

import sys

from simulations.tools.main import main

if __name__ == "__main__":
    sys.exit(main())
