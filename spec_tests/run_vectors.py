"""Run a folder of TensorFlow's recordings against this engine: `python spec_tests/run_vectors.py
DIR [GROUP ...]`.

The program is the module `spec_tests.tensorflow_recordings`; `--help` describes its output and its
exit code. This file starts it from any directory, with the shardvar of this working copy.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    found_at = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    program = [sys.executable, "-m", "spec_tests.tensorflow_recordings", *sys.argv[1:]]
    sys.exit(subprocess.call(program, env=os.environ | {"PYTHONPATH": found_at}))
