"""``python -I -m calabash.netd``."""

import sys

from calabash.netd.main import main

sys.exit(main())
