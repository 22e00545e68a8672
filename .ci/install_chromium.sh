#!/usr/bin/env bash
# Chromium for the tests of the pages (tests/browser/), where there is none yet and this machine lets us: as root, with apt.
# Without it those tests are skipped, which fails .ci/run.
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" > /dev/null; then
        exit 0
    fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium
else
    echo "no Chromium is installed, and it cannot be installed without root and apt-get: install it, or the tests of the pages are skipped" >&2
fi
