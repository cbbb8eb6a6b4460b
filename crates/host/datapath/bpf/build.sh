#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
# Builds gate.bpf.o from gate.c with clang 14. The result is the same on every machine, so it is kept in the repository
# and users need no compiler; `build.sh --check` compares the kept object with a fresh one.
set -eu
cd "$(dirname "$0")"
clang=${CLANG:-clang-14}
if ! command -v "$clang" >/dev/null; then
	echo "build.sh: $clang not found; install clang-14 or name it in CLANG" >&2
	exit 1
fi
case ${1:-} in
--check) object=$(mktemp) && trap 'rm -f "$object"' EXIT ;;
'') object=gate.bpf.o ;;
*) echo "usage: build.sh [--check]" >&2 && exit 2 ;;
esac
"$clang" -O2 -g -target bpf -mcpu=v3 -std=gnu11 -Wall -Wextra -Werror -nostdinc \
	-ffile-prefix-map="$PWD"=. -fdebug-compilation-dir=. -c gate.c -o "$object"
if [ "$object" != gate.bpf.o ]; then
	cmp "$object" gate.bpf.o || { echo "build.sh: gate.bpf.o is not what gate.c builds; run build.sh" >&2 && exit 1; }
fi
