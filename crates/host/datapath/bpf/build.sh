#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
# Builds NAME.bpf.o from NAME.c with clang 14, for each program, and leaves of what it knows for debuggers what the kernel
# wants (BTF). The result is the same on every machine, so it is kept in the repository and users need no compiler;
# `build.sh --check` compares the kept objects with fresh ones.
set -eu
cd "$(dirname "$0")"
clang=${CLANG:-clang-14}
objcopy=${OBJCOPY:-llvm-objcopy-14}
for tool in "$clang" "$objcopy"; do
	command -v "$tool" >/dev/null && continue
	echo "build.sh: $tool not found; install clang-14 and llvm-14, or name them in CLANG and OBJCOPY" >&2
	exit 1
done
fresh=$(mktemp) && trap 'rm -f "$fresh"' EXIT
case ${1:-} in
--check) keep= ;;
'') keep=yes ;;
*) echo "usage: build.sh [--check]" >&2 && exit 2 ;;
esac
for name in gate sip; do
	"$clang" -O2 -g -target bpf -mcpu=v3 -std=gnu11 -Wall -Wextra -Werror -nostdinc \
		-ffile-prefix-map="$PWD"=. -fdebug-compilation-dir=. -c $name.c -o "$fresh"
	"$objcopy" --strip-debug --remove-section .rel.BTF.ext "$fresh"
	if [ -n "$keep" ]; then
		cat "$fresh" >$name.bpf.o
		continue
	fi
	cmp "$fresh" $name.bpf.o || {
		echo "build.sh: $name.bpf.o is not what $name.c builds; run build.sh" >&2
		exit 1
	}
done
