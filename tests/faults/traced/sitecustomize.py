"""Python reads this at its start where its folder is on the path: drivers and workers then tell what they do.

For tests/faults/traced_faults.py, which sets the path and the folder.
"""

import os
import sys
from pathlib import Path

if folder := os.environ.get("TIDEGATE_TRACES"):
    sys.path.append(str(Path(__file__).resolve().parents[2]))

    from observed import install, write_to_folder

    install(write_to_folder(folder))
