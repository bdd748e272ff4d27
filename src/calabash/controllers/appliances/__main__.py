"""``python -I -m calabash.controllers.appliances``."""

import sys

from calabash.controllers.appliances.main import main

sys.exit(main())
