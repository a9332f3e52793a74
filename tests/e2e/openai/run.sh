#!/usr/bin/env bash
# run.sh FOLDER PORT: fetches OpenAI's client into FOLDER, once, and lets it talk to the server at PORT. Ends with 77 if it cannot be
# fetched.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
"$here/../../support/fetch_npm.sh" "$here/package.json" "$1"
cp "$here/client.mjs" "$1/client.mjs"
node "$1/client.mjs" "$2"
