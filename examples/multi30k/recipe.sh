#!/usr/bin/env bash
# Trains and scores the model of this folder: recipe.sh MULTI30K_FOLDER OUT_FOLDER [KEY=VALUE...]
# MULTI30K_FOLDER holds {train,val,test_2016_flickr,test_2017_flickr,test_2017_mscoco}.{en,de}.gz. Keys
# change train.json: device=cuda dtype=bf16. QKV chooses the program.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
data=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
changes=("${@:3}")
qkv=${QKV:-qkv}
device=cpu
[[ " ${changes[*]} " == *" device=cuda "* ]] && device=cuda

"$here/prepare.py" "$data" "$out"
if [[ ! -e $out/tokenizer.json ]]; then
  # One vocabulary for both languages. The first word of a line has its space like all others.
  cut -f1 "$out/train.tsv" | sed 's/^/ /' > "$out/train.en"
  cut -f2 "$out/train.tsv" | sed 's/^/ /' > "$out/train.de"
  "$qkv" tokenizer train --kind bpe --size 10000 --special '<pad>' '</s>' '<unk>' --out "$out" \
    "$out/train.en" "$out/train.de"
  sed -i 's/"add_prefix_space":false/"add_prefix_space":true/g' "$out/tokenizer.json"
fi
cp "$here/train.json" "$out/train.json"
"$qkv" train "$out/train.json" --out "$out/run" --resume ${changes:+--set "${changes[@]}"}

for test in test_2016:test_2016_flickr test_2017:test_2017_flickr test_coco:test_2017_mscoco; do
  name=${test%:*}
  cut -f2 "$out/$name.tsv" > "$out/$name.words"
  gzip -dc "$data/${test#*:}.de.gz" > "$out/$name.reference"
  cut -f1 "$out/$name.tsv" |
    "$qkv" translate --model "$out/run/best" --beams 5 --device "$device" | sed 's/^ //' > "$out/$name.found"
  sed -E -f "$here/detokenize.sed" "$out/$name.found" > "$out/$name.text"
  echo "$name, words as Wu et al. count them:"
  "$qkv" bleu "$out/$name.found" "$out/$name.words" --tokenize none --unsmoothed
  echo "$name, text against the untouched reference, sacreBLEU 13a, lower case:"
  "$qkv" bleu "$out/$name.text" "$out/$name.reference" --lowercase
done
