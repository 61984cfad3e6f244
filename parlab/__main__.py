"""`python -m parlab`: the command `parlab`, where no scripts are on the path."""

import sys

from parlab.cli import main

sys.exit(main())
