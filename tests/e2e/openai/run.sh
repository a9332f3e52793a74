#!/usr/bin/env bash
# run.sh FOLDER PORT: fetches OpenAI's client into FOLDER, once, and lets it talk to the server at PORT. Ends with 77 if it cannot be
# fetched.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
folder=$1
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
cp "$here/client.mjs" "$folder/client.mjs"
node "$folder/client.mjs" "$2"
