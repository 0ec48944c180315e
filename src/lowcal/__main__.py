"""`python -m lowcal` is the command `lowcal`."""

import sys

from lowcal.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
