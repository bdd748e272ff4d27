"""``python -I -m calabash.netd.fabric``."""

import sys

from calabash.netd.fabric.main import main

sys.exit(main())
