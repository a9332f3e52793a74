#!/bin/sh
# Makes the corpus that train.py learns English from: fetch_text.sh OUT.txt.xz
#
# Every text comes from a Debian 12 package, which is downloaded and unpacked but not installed. Needs apt-get, dpkg, python3.
# The packages and the licences of the texts taken from them:
#
#   bible-kjv, bible-kjv-text   King James Bible                        public domain
#   dict-devil                  The Devil's Dictionary                  public domain
#   dict-jargon                 The Jargon File                         public domain
#   dict-foldoc                 Free On-line Dictionary of Computing    GFDL 1.1 or later
#   debian-reference-en         Debian Reference                        GPL 2 or later
#   debian-handbook             The Debian Administrator's Handbook     GPL 2 or later, or CC BY-SA 3.0
#   gnome-user-docs             GNOME help                              CC BY-SA 3.0
#   wesnoth-1.16-*              stories of the campaigns of Wesnoth     GPL 2 or later
set -eu
[ $# = 1 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 2; }
out=$(realpath -m "$1")
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
campaigns=""
for c in did dm dw ei httt l low nr sof sota sotbe thot trow tsg ttb utbs; do campaigns="$campaigns wesnoth-1.16-$c"; done
# shellcheck disable=SC2086  # A list of packages.
apt-get download bible-kjv bible-kjv-text dict-devil dict-jargon dict-foldoc debian-reference-en debian-handbook \
  gnome-user-docs $campaigns
for package in *.deb; do dpkg -x "$package" root; done
echo "Gen1:1-Rev22:21" | root/usr/bin/bible -p root/usr/lib >bible.txt
mkdir -p "$(dirname "$out")"
python3 "$here/extract_text.py" root bible.txt "$out"
