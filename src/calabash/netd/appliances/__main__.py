"""``python -I -m calabash.netd.appliances``."""

import sys

from calabash.netd.appliances.main import main

sys.exit(main())
