"""``python -I -m calabash.controllers.networks``."""

import sys

from calabash.controllers.networks.main import main

sys.exit(main())
