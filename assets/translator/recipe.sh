#!/usr/bin/env bash
# Makes the model of this folder again: recipe.sh TATOEBA_FOLDER OUT_FOLDER
# TATOEBA_FOLDER holds {fra,deu,spa}-eng.{train,valid}.tsv: foreign TAB english, a pair a line.
# On an H200 it takes nine and a half minutes; QKV chooses the program.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
data=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
qkv=${QKV:-qkv}

if [[ ! -e $out/tokenizer.json ]]; then
  for language in fra deu spa; do cut -f1 "$data/$language-eng.train.tsv" > "$out/$language.txt"; done
  cut -qf2 "$data"/{deu,fra,spa}-eng.train.tsv | LC_ALL=C sort -u > "$out/eng.txt"
  "$qkv" tokenizer train --kind unigram --size 8000 \
    --special '<pad>' '</s>' '<unk>' '<fr>' '<de>' '<es>' --out "$out" \
    "$out"/{fra,deu,spa,eng}.txt
fi
cp "$here/train.json" "$out/train.json"
for language in fra deu spa; do
  ln -sf "$data/$language-eng.train.tsv" "$data/$language-eng.valid.tsv" "$out/"
done
"$qkv" train "$out/train.json" --out "$out/run" --resume
"$qkv" quantize "$out/run/model" "$out/translator" --group 64
