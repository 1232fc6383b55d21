#!/usr/bin/env bash
# Gradescope runs this once, when the autograder is built.
set -euo pipefail
cd "$(dirname "$0")"
apt-get update -qq && apt-get install -y -qq python3 python3-venv python3-pip libseccomp2
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "choose an image with Python 3.11 or newer")'
python3 -m venv venv
venv/bin/pip install --quiet -r requirements.txt
