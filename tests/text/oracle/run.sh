#!/usr/bin/env bash
# run.sh PROGRAM FOLDER TEXTS [every-character]: fetches Hugging Face's tokenizers and four vocabularies into FOLDER, once, and compares
# PROGRAM with them. Ends with 77 if they cannot be fetched.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
folder=$2
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  echo "node and npm are not installed"
  exit 77
fi
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
if ! cmp -s "$here/package.json" "$folder/fetched"; then
  cp "$here/package.json" "$folder/package.json"
  if ! (cd "$folder" && npm install -E --ignore-scripts --no-audit --no-fund >npm.log 2>&1); then
    tail -3 "$folder/npm.log"
    exit 77
  fi
  cp "$here/package.json" "$folder/fetched"
fi
node "$here/compare.mjs" "$1" "$folder" "${@:3}" 2>&1 | tee "$folder/report.txt"
