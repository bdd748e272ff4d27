"""``python -I -m calabash.controllers.fabric``."""

import sys

from calabash.controllers.fabric.main import main

sys.exit(main())
