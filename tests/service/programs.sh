#!/bin/sh
# Says which programs that tests of the service drive (a browser, a database, proxies) are missing, and how to get them.
# With --install, installs them from Debian's packages, as CI does.
set -eu

missing=""
command -v chromium > /dev/null || missing="$missing chromium"
command -v pg_ctl > /dev/null || ls /usr/lib/postgresql/*/bin/pg_ctl > /dev/null 2>&1 || missing="$missing postgresql"
for proxy in nginx caddy; do
    command -v "$proxy" > /dev/null || [ -x "/usr/sbin/$proxy" ] || missing="$missing $proxy"
done
[ -n "$missing" ] || exit 0

if [ "${1:-}" = --install ]; then
    echo "installing for the tests of the service:$missing"
    log=$(mktemp)
    apt="apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3"
    install="$apt install -y --no-install-recommends$missing"
    if DEBIAN_FRONTEND=noninteractive sh -c "$install || { $apt update && $install; }" > "$log" 2>&1; then
        rm -f "$log"
        exit 0
    fi
    tail -n 5 "$log" >&2
    rm -f "$log"
fi
echo "missing, so that tests under tests/service will fail:$missing (on Debian, as root: tests/service/programs.sh --install)" >&2
