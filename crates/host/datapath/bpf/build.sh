#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
# Builds NAME.bpf.o from NAME.c with clang 14, for each program. The result is the same on every machine, so it is kept in
# the repository and users need no compiler; `build.sh --check` compares the kept objects with fresh ones.
set -eu
cd "$(dirname "$0")"
clang=${CLANG:-clang-14}
if ! command -v "$clang" >/dev/null; then
	echo "build.sh: $clang not found; install clang-14 or name it in CLANG" >&2
	exit 1
fi
case ${1:-} in
--check) fresh=$(mktemp) && trap 'rm -f "$fresh"' EXIT ;;
'') fresh= ;;
*) echo "usage: build.sh [--check]" >&2 && exit 2 ;;
esac
for name in gate sip; do
	"$clang" -O2 -g -target bpf -mcpu=v3 -std=gnu11 -Wall -Wextra -Werror -nostdinc \
		-ffile-prefix-map="$PWD"=. -fdebug-compilation-dir=. -c $name.c -o "${fresh:-$name.bpf.o}"
	[ -z "$fresh" ] || cmp "$fresh" $name.bpf.o || {
		echo "build.sh: $name.bpf.o is not what $name.c builds; run build.sh" >&2
		exit 1
	}
done
