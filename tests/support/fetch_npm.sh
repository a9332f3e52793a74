#!/usr/bin/env bash
# fetch_npm.sh PACKAGE_JSON FOLDER: fetches what PACKAGE_JSON asks for into FOLDER, once. Ends with 77 if that cannot be done.
set -euo pipefail
folder=$2
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  echo "node and npm are not installed"
  exit 77
fi
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
cmp -s "$1" "$folder/fetched" && exit
cp "$1" "$folder/package.json"
if ! (cd "$folder" && npm install -E --ignore-scripts --no-audit --no-fund >npm.log 2>&1); then
  tail -3 "$folder/npm.log"
  exit 77
fi
cp "$1" "$folder/fetched"
