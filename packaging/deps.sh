#!/bin/sh
# Installs the programs that the tests run: a C compiler for the race
# detector, phones, call generators and packet tools. Quiet when all are there.
set -eu

# command:Debian package
wanted='gcc:gcc sipp:sip-tester baresip:baresip sox:sox tcpdump:tcpdump tshark:tshark ip:iproute2'

PATH=$PATH:/usr/sbin:/sbin
missing=
packages=
for w in $wanted; do
	if ! command -v "${w%%:*}" >/dev/null 2>&1; then
		missing="$missing ${w%%:*}"
		packages="$packages ${w##*:}"
	fi
done
# gcc without the headers of libc compiles nothing.
if ! [ -e /usr/include/stdlib.h ]; then
	missing="$missing libc-headers"
	packages="$packages libc6-dev"
fi
[ -n "$missing" ] || exit 0

refuse() {
	echo "deps: the tests need$missing; $1" >&2
	exit 1
}
command -v apt-get >/dev/null 2>&1 || refuse "this is not Debian, so install them by hand and run this again"
as=
if [ "$(id -u)" != 0 ]; then
	if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
		as='sudo -n'
	else
		refuse "I may not install them, so run: sudo apt-get install --no-install-recommends$packages"
	fi
fi

echo "deps: installing$packages" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { $as env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >>"$log" 2>&1; }
# The package lists may be fresh, absent or old: ask for new ones only if needed.
# shellcheck disable=SC2086
if ! apt install --no-install-recommends $packages; then
	if ! apt update || ! apt install --no-install-recommends $packages; then
		tail -n 20 "$log" >&2
		refuse "apt-get could not install them, as shown above"
	fi
fi
