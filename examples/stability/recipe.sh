#!/usr/bin/env bash
# A run whose scores grow without an end, and the same run kept in three ways:
#   recipe.sh TEXT_FILE OUT_FOLDER
# About four minutes on two cores; OUT_FOLDER/curves.svg has the curves. QKV chooses the program.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
qkv=${QKV:-qkv}

cp "$1" "$out/text.txt"
cp "$here/train.json" "$out/"
[[ -e $out/tokenizer.json ]] ||
  "$qkv" tokenizer train --kind bpe --size 1000 --out "$out" "$out/text.txt"

run() { # run NAME [CHANGE...]
  local name=$1
  shift
  "$qkv" train "$out/train.json" --out "$out/$name" ${1:+--set "$@"}
}
run plain
run qk-clip watch.clip=50
run qk-norm model.qk_norm=true
run softcap model.attn_logit_softcapping=30
"$qkv" study runs "$out"/{plain,qk-clip,qk-norm,softcap} --out "$out/curves.svg"
